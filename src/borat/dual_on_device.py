"""The dual of a batch of problems, solved where their tensors are: the paper's Algorithm 1 with fixed shapes.

All supports of up to 8 pieces are tried at once. No operation waits for the value of a tensor, so that the host goes on
while a GPU computes, and ``torch.compile`` sees one sequence of operations for all problems.

On the support of a solution all derivatives ``r = b - Q alpha`` are equal (Proposition 1). The rows of ``P`` lead from
the shortest gradient of the support, its origin, to each of the others: ``P r`` are differences of derivatives,
``P'x`` is a change of the weights that keeps their sum, and the change that makes the derivatives equal solves

    P Q P' x = P r

from any point of the support's face. The result is clipped to the simplex and judged there: of all supports the one
with the smallest duality gap ``max(r) - alpha'r`` wins, which is zero at solutions only. So nothing has to be known
about singular systems (Proposition 3). They yield a bad point or none, and a support without the piece that made them
singular yields a good one.

On a GPU each operation is a launch, and these are small. So what depends on the number of pieces alone is made once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from borat import kernels_on_device

LIMIT = 8
"""Largest number of pieces: N of them have 2^N - 1 supports."""

_EPS = torch.finfo(torch.float64).eps

_STEPS = 2
"""One step solves a system; since it does so by the inverse, which costs digits, another one follows."""


def maximise(Q: Tensor, b: Tensor) -> Tensor:
    """The weights that maximise ``b'alpha - 1/2 alpha'Q alpha``, in float64, of shape ``(..., N)`` like ``b``.

    ``Q`` is symmetric, of shape ``(..., N, N)``. A problem with an entry that is not finite gets weights that are NaN.
    """
    n = b.shape[-1]
    b, Q = torch.broadcast_tensors(b.unsqueeze(-2), Q)  # type: ignore[no-untyped-call]
    shape, problem = b.shape[:-2], torch.cat((b.narrow(-2, 0, 1), Q), -2)
    return DualOnDevice(n, b.device)(problem.view(math.prod(shape), n + 1, n)).view(*shape, n)


class DualOnDevice:
    """The dual of so many pieces, on this device."""

    def __init__(self, pieces: int, device: torch.device) -> None:
        self._rounding = torch.full((), (pieces + 3) * _EPS, dtype=torch.float64, device=device)
        self._has_kernel = pieces <= kernels_on_device.LARGEST_DUAL and kernels_on_device.are_used(device)
        if self._has_kernel:
            return
        member = torch.arange(1, 2**pieces, device=device).unsqueeze(-1) >> torch.arange(pieces, device=device) & 1
        # From the smallest supports to the largest: of points that are equally good the first one is taken.
        member = member.index_select(0, member.sum(-1).argsort(stable=True)).to(torch.float64)
        self._is_member, self._member = member > 0.0, member.unsqueeze(-1)
        self._identity = torch.eye(pieces, dtype=torch.float64, device=device)
        self._twice = 2.0 * self._identity
        self._is_diagonal = self._identity > 0.0
        self._members = self._member * self._identity
        self._inf, self._one = self._identity.new_full((), torch.inf), self._identity.new_ones(())

    def __call__(self, problem: Tensor) -> Tensor:
        """The weights of a batch of problems, each with ``b`` as its first row and ``Q`` below it."""
        if self._has_kernel:
            weights: Tensor = kernels_on_device.dual(problem, self._rounding)
            return weights
        largest = torch.linalg.vector_norm(problem, torch.inf, (-2, -1), keepdim=True).clamp_min(1e-300)
        # Numbers of the size of one stay in the range of float64; a power of two changes no digit of them.
        problem = problem * (largest.frexp().mantissa / largest)
        return self._best(problem, self._candidates(problem))

    def _candidates(self, problem: Tensor) -> Tensor:
        """For each support a point of the simplex, of shape ``(batch, supports, N)``: its solution, clipped."""
        b, Q = _parts(problem)
        lengths = Q.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
        shortest = torch.where(self._is_member, lengths, self._inf).argmin(-1)
        origin = self._identity.index_select(0, shortest.flatten()).view(*shortest.shape, Q.shape[-1])
        P = torch.addcmul(self._members, self._member, origin.unsqueeze(-2), value=-1.0)
        PQ, P = P.flatten(1, 2) @ Q, P.flatten(0, 1)
        back = self._inverse(PQ.view_as(P) @ P.mT) @ P
        alpha = origin
        for _ in range(_STEPS):
            slope = P @ torch.baddbmm(b, alpha, Q, alpha=-1.0).flatten(0, 1).unsqueeze(-1)
            alpha = torch.baddbmm(alpha.flatten(0, 1).unsqueeze(-2), slope.mT, back).view_as(origin)
        alpha = alpha.clamp_min(0.0)
        return alpha / alpha.sum(-1, keepdim=True)

    def _inverse(self, M: Tensor) -> Tensor:
        """The inverses of positive definite matrices, by the sweep operator. Rows of zeros are taken for a one's."""
        scale = M.diagonal(dim1=-2, dim2=-1).rsqrt().nan_to_num(nan=1.0, posinf=1.0)
        scales = scale.unsqueeze(-1) * scale.unsqueeze(-2)
        swept = torch.where(self._is_diagonal, self._one, M * scales)
        for k in range(M.shape[-1]):
            # Of the k-th column a with the pivot d = a_k: -1/d takes the place of d, a/d that of a, and all others lose
            # a_i a_j / d. The column with d - 1 instead of d does this in one product, except for a 2 on the diagonal.
            column = swept.select(-1, k)
            changed = column - self._identity.select(-1, k)
            swept = swept.addcmul(changed.unsqueeze(-1), (changed / column.narrow(-1, k, 1)).unsqueeze(-2), value=-1.0)
        return (self._twice - swept) * scales

    def _best(self, problem: Tensor, candidates: Tensor) -> Tensor:
        """The candidate with the smallest gap; of those whose gaps drown in rounding, that with the fewest pieces."""
        b, Q = _parts(problem)
        r = torch.baddbmm(b, candidates, Q, alpha=-1.0)
        gap = (r.amax(-1) - (candidates * r).sum(-1)).nan_to_num(nan=torch.inf)
        sizes, rounding = _parts(problem.abs()), (b.shape[-1] + 3) * _EPS
        noise = torch.baddbmm(sizes[0], candidates, sizes[1], beta=rounding, alpha=rounding).amax(-1)
        least = gap.fmax(noise).amin(-1, keepdim=True)
        best = gap.fmax(least).argmin(-1, keepdim=True).unsqueeze(-1).expand_as(b)
        return candidates.gather(1, best).squeeze(1)


def _parts(problem: Tensor) -> tuple[Tensor, Tensor]:
    """``b`` and ``Q``."""
    b, Q = problem.split_with_sizes((1, problem.shape[-1]), dim=-2)
    return b, Q
