"""The dual in NumPy, for machines without a C compiler.

The paper's Algorithm 1 is :class:`Enumeration`: on the support ``I`` of a solution all partial derivatives
are equal (Proposition 1), so that each support leaves one linear system,

    [ Q_II  1 ] [ alpha_I ]   [ b_I ]
    [ 1'    0 ] [    c    ] = [  1  ],

and the best feasible solution of all of them is the maximum. Singular systems are skipped (Proposition 3), never
regularised. A new piece only adds the supports that contain it: bordering the inverse of every earlier system by
one row solves them all in a few batched operations. The number of supports doubles with every piece, so larger
problems go to :func:`_ascend`, an active-set method that is as exact; it also removes the last rounding error of
the enumeration.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

ENUMERATION_LIMIT = 8
"""Largest number of pieces whose supports are enumerated; beyond it 2^N outgrows the active-set method."""

_EPS = float(np.finfo(np.float64).eps)


class NumpyDual:
    """A growing problem: neither earlier entries of ``Q`` change, nor the subproblems already solved."""

    def __init__(self, capacity: int) -> None:
        self._Q = np.zeros((capacity, capacity))
        self._b = np.zeros(capacity)
        self._alpha = np.zeros(0)
        self._enumeration = Enumeration(capacity) if capacity <= ENUMERATION_LIMIT else None

    @np.errstate(over="ignore", invalid="ignore")  # of supports that are no solution, where numbers are extreme
    def add(self, row: Array, offset: float) -> Array:
        """Append a piece, given ``Q[n, :n+1]`` and ``b[n]``, and return the weights of all pieces so far."""
        n = len(self._alpha)
        self._Q[n, : n + 1] = self._Q[: n + 1, n] = row
        self._b[n] = offset
        Q, b = self._Q[: n + 1, : n + 1], self._b[: n + 1]
        earlier = 0
        if self._enumeration is not None:
            earlier = self._enumeration.supports
            self._enumeration.add(row, offset)
        if n == 0:
            self._alpha = np.ones(1)
            return self._alpha
        start = np.append(self._alpha, 0.0)
        if self._enumeration is not None:
            candidates = np.vstack((self._enumeration.feasible(earlier), start))
            start = candidates[np.argmax(_values(Q, b, candidates))]
        self._alpha = _ascend(Q, b, start)
        return self._alpha

    @property
    def value(self) -> float:
        n = len(self._alpha)
        return float(_values(self._Q[:n, :n], self._b[:n], self._alpha))

    @staticmethod
    def maximise(Q: Array, b: Array) -> tuple[Array, float]:
        """The weights and the value of a whole problem; the value is not finite if an entry is not."""
        if not (np.isfinite(Q).all() and np.isfinite(b).all()):
            return np.full_like(b, np.nan), np.nan
        Q, b, exponent = _scaled(0.5 * Q + 0.5 * Q.T, b)
        alpha = _ascend(Q, b, _enumerate(Q, b) if len(b) <= ENUMERATION_LIMIT else _best_vertex(Q, b))
        return alpha, float(np.ldexp(_values(Q, b, alpha), -exponent))


class Enumeration:
    """Algorithm 1, batched over the supports and incremental in the pieces.

    For every support whose system is regular it keeps the system's inverse and its solution, both padded with zeros
    outside the support, with the multiplier ``c`` in place 0 and piece ``n`` in place ``n + 1``.
    """

    def __init__(self, capacity: int) -> None:
        supports = 2**capacity - 1
        self._inverse = np.zeros((supports, capacity + 1, capacity + 1))
        self._solution = np.zeros((supports, capacity + 1))
        self.supports = 0
        self._pieces = 0

    def add(self, row: Array, offset: float) -> None:
        """Solve the systems of all supports that contain the new piece, by bordering those that do not."""
        first, end = self.supports, self._pieces + 1
        last = self._border(row, offset, first, end) if first else 0
        # The new piece alone: alpha = 1, c = b - Q.
        self._solution[last, 0], self._solution[last, end] = offset - row[-1], 1.0
        self._inverse[last, 0, 0] = -row[-1]
        self._inverse[last, 0, end] = self._inverse[last, end, 0] = 1.0
        self.supports, self._pieces = last + 1, end

    def _border(self, row: Array, offset: float, first: int, end: int) -> int:
        """Append the systems of the supports so far with the new piece; the number of all of them."""
        column = np.concatenate(([1.0], row[:-1]))
        inverse, solution = self._inverse[:first, :end, :end], self._solution[:first, :end]
        u = inverse @ column
        # The Schur complement is the squared distance of the new gradient to the affine hull of the support's.
        pivot = row[-1] - u @ column
        regular = pivot > 16 * _EPS * (abs(row[-1]) + np.abs(u) @ np.abs(column))
        if not regular.all():
            inverse, solution, u, pivot = inverse[regular], solution[regular], u[regular], pivot[regular]
        weight = (offset - solution @ column) / pivot
        last = first + len(weight)
        scaled = u / pivot[:, None]
        self._solution[first:last, :end] = solution - weight[:, None] * u
        self._solution[first:last, end] = weight
        self._inverse[first:last, :end, :end] = inverse + u[:, :, None] * scaled[:, None, :]
        self._inverse[first:last, :end, end] = self._inverse[first:last, end, :end] = -scaled
        self._inverse[first:last, end, end] = 1.0 / pivot
        return last

    def feasible(self, first: int = 0) -> Array:
        """The solutions inside the simplex, of the supports from number ``first`` on, one per row."""
        candidates = self._solution[first : self.supports, 1 : self._pieces + 1]
        candidates = candidates[candidates.min(axis=1) >= 0.0]
        feasible: Array = candidates / candidates.sum(axis=1, keepdims=True)
        return feasible


def _enumerate(Q: Array, b: Array) -> Array:
    """The best of all supports' feasible solutions."""
    enumeration = Enumeration(len(b))
    for n in range(len(b)):
        enumeration.add(Q[n, : n + 1], b[n])
    candidates = enumeration.feasible()
    alpha: Array = candidates[np.argmax(_values(Q, b, candidates))]
    return alpha


def _best_vertex(Q: Array, b: Array) -> Array:
    alpha = np.zeros(len(b))
    alpha[np.argmax(b - 0.5 * np.diagonal(Q))] = 1.0
    return alpha


def _ascend(Q: Array, b: Array, alpha: Array) -> Array:
    """Active-set ascent from a feasible ``alpha`` to the maximum.

    Every step is a Newton step on the face of the current support, cut off where a weight reaches zero; once the
    face is solved, the piece with the largest derivative enters. The duality gap ``max(r) - alpha'r`` with
    ``r = b - Q alpha`` bounds the distance to the maximum, and the ascent ends when it drowns in rounding.
    """
    n = len(b)
    Q, b, _ = _scaled(Q, b)
    size_Q, size_b = np.abs(Q), np.abs(b)
    best, best_gap = alpha, np.inf
    for _ in range(50 * n):
        r = b - Q @ alpha
        gap = float(r.max() - alpha @ r)
        if gap < best_gap:
            best, best_gap = alpha, gap
        noise = (n + 3) * _EPS * float((size_b + size_Q @ alpha).max())
        if gap <= noise:
            break
        support = np.flatnonzero(alpha)
        if np.ptp(r[support]) <= noise:
            entering = int(np.argmax(r))
            if entering in support:
                break
            support = np.append(support, entering)
        alpha = _step_on_face(Q, r, alpha, support)
    return best


def _step_on_face(Q: Array, r: Array, alpha: Array, support: npt.NDArray[np.intp]) -> Array:
    """Newton's step over the weights in ``support``, as far as they stay non-negative."""
    # The gradient of least norm is the origin of the face: differences to it lose the fewest digits.
    base = support[np.argmin(Q[support, support])]
    others = support[support != base]
    cross = Q[others, base]
    M = Q[np.ix_(others, others)] - cross[:, None] - cross[None, :] + Q[base, base]
    diagonal = np.diagonal(M)
    scale = 1.0 / np.sqrt(np.where(diagonal > 0.0, diagonal, 1.0))
    curvature, axes = np.linalg.eigh(M * scale[:, None] * scale[None, :])
    # A flat or, by rounding, negatively curved axis gets a step so long that a weight reaches zero first.
    curvature = np.maximum(curvature, len(support) * _EPS)
    direction = np.zeros(len(alpha))
    direction[others] = scale * (axes @ ((axes.T @ ((r[others] - r[base]) * scale)) / curvature))
    direction[base] = -direction[others].sum()
    vanishing = np.flatnonzero((direction < 0.0) & (-direction >= alpha))
    limits = alpha[vanishing] / -direction[vanishing]
    length = limits.min(initial=1.0)
    moved = np.maximum(alpha + length * direction, 0.0)
    moved[vanishing[limits <= length]] = 0.0
    result: Array = moved / moved.sum()
    return result


def _scaled(Q: Array, b: Array) -> tuple[Array, Array, int]:
    """The problem with entries of the size of one, and the exponent of its scale.

    A power of two changes no digit. It keeps products inside the range of float64, and gives absolute tolerances sense.
    """
    exponent = -int(np.frexp(max(np.abs(Q).max(), np.abs(b).max()))[1])
    return np.ldexp(Q, exponent), np.ldexp(b, exponent), exponent


def _values(Q: Array, b: Array, alpha: Array) -> Array:
    """The dual value of each row of ``alpha``."""
    values: Array = alpha @ b - 0.5 * (alpha @ Q * alpha).sum(axis=-1)
    return values
