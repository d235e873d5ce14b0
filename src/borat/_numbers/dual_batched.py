"""The dual of a batch of problems in fixed shapes: the paper's Algorithm 1 for devices.

All supports of up to 8 pieces are tried at once. The sequence of operations does not depend on values, so there is no
device sync, and one compiled graph serves all problems.

On the support of a solution all derivatives ``r = b - Q alpha`` are equal (Proposition 1). The rows of ``P`` lead from
the shortest gradient of the support, its origin, to each of the others: ``P r`` are differences of derivatives,
``P'x`` is a change of the weights that keeps their sum, and the change that makes the derivatives equal solves

    P Q P' x = P r

from any point of the support's face. The result is clipped to the simplex and rated there: the support with the
smallest duality gap ``max(r) - alpha'r`` wins, which is zero at solutions only. So singular systems need no special
case (Proposition 3): they yield a bad point, and a support without the piece that made them singular yields a good
one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

LIMIT = 8
"""Largest number of pieces: N of them have 2^N - 1 supports."""

_STEPS = 2
"""The first step solves a system by its inverse, which costs digits; the second restores them."""


class BatchedDual:
    """Solver for duals of a fixed number of pieces.

    Args:
        pieces: the number of pieces.
        arange: makes the vector ``0, 1, ..., n - 1`` of the problems' kind of array.
        where: elementwise choice.
        largest: maximum over the last axis.
        eps: relative rounding error of the problems' kind of number, float64's by default.
    """

    def __init__(
        self,
        pieces: int,
        arange: Callable[[int], Any],
        where: Callable[..., Any],
        largest: Callable[[Any], Any],
        eps: float = 2.0**-52,
    ) -> None:
        self._where, self._largest, self._noise = where, largest, (pieces + 3) * eps
        self._index, self._supports = arange(pieces), arange(2**pieces - 1)
        one = self._index * 0.0 + 1.0
        self._basis = [where(self._index == k, one, 0.0) for k in range(pieces)]
        self._identity = where(_column(self._index) == self._index, one, 0.0)
        self._member = _column(self._supports + 1.0) // 2.0**self._index % 2.0
        """1 if a support (row) has a piece (column): the bits of its number."""
        self._sizes = self._member.sum(-1)
        self._members = _column(self._member) * self._identity

    def __call__(self, Q: Any, b: Any) -> Any:
        """Return the weights, of shape ``(..., N)``, for ``Q`` of shape ``(..., N, N)``, symmetric, and ``b``."""
        sizes = self._largest(self._largest(abs(Q))), self._largest(abs(b))
        size = self._where(sizes[0] > sizes[1], *sizes)
        size = _column(_column(self._where(size > 0.0, size, 1.0)))  # avoids overflow at any scale
        Q, b = Q / size, _row(b) / size
        Q = Q.reshape(*Q.shape[:-2], 1, *Q.shape[-2:])
        return self._best(Q, b, self._candidates(Q, b))

    def _candidates(self, Q: Any, b: Any) -> Any:
        """Return a point of the simplex for each support, of shape ``(..., supports, N)``: its solution, clipped."""
        lengths = (Q * self._identity).sum(-1)
        shortest = self._where(self._member > 0.0, lengths, math.inf).argmin(-1)
        origin = self._where(_column(shortest) == self._index, 1.0, 0.0 * self._member)
        P = self._members - _column(self._member) * _row(origin)
        inverse = self._inverse(P @ Q @ P.mT)
        alpha = origin
        for _ in range(_STEPS):
            change = P.mT @ (inverse @ (P @ _column(self._slopes(Q, b, alpha))))
            alpha = alpha + change.reshape(alpha.shape)
        alpha = self._where(alpha > 0.0, alpha, 0.0)
        return alpha / _column(alpha.sum(-1))

    def _inverse(self, M: Any) -> Any:
        """Invert positive definite matrices by the sweep operator. Rows of zeros count as rows of the identity."""
        diagonal = (M * self._identity).sum(-1)
        scale = self._where(diagonal > 0.0, diagonal, 1.0) ** -0.5
        scales = _column(scale) * _row(scale)
        swept = self._where(self._identity > 0.0, 1.0, M * scales)
        for unit in self._basis:
            # With the k-th column a and the pivot d = a_k, the sweep replaces d by -1/d, a by a/d, and subtracts
            # a_i a_j / d elsewhere. The column with d - 1 instead of d does this in one product, up to a 2 on the
            # diagonal.
            column = (swept * unit).sum(-1)
            pivot = (column * unit).sum(-1)
            changed = column - unit
            swept = swept - _column(changed) * _row(changed / _column(pivot))
        return (2.0 * self._identity - swept) * scales

    def _best(self, Q: Any, b: Any, candidates: Any) -> Any:
        """Return the candidate with the smallest gap; among gaps within rounding, the one with the fewest pieces."""
        r = self._slopes(Q, b, candidates)
        gap = self._largest(r) - (candidates * r).sum(-1)
        gap = self._where(gap < math.inf, gap, math.inf)  # NaN for supports without a solution
        noise = self._noise * self._largest(self._slopes(-abs(Q), abs(b), candidates))
        least = -self._largest(-self._where(gap > noise, gap, self._where(noise < math.inf, noise, gap)))
        best = self._where(gap > _column(least), math.inf, self._sizes).argmin(-1)
        is_best = _column(best) == self._supports
        return self._where(_column(is_best), candidates, 0.0).sum(-2)

    @staticmethod
    def _slopes(Q: Any, b: Any, alpha: Any) -> Any:
        """Return the derivatives ``b - Q alpha``."""
        return b - (Q @ _column(alpha)).reshape(alpha.shape)


def _column(x: Any) -> Any:
    return x.reshape(*x.shape, 1)


def _row(x: Any) -> Any:
    return x.reshape(*x.shape[:-1], 1, x.shape[-1])
