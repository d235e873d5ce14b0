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
"""

from __future__ import annotations

import torch
from torch import Tensor

LIMIT = 8
"""Largest number of pieces: N of them have 2^N - 1 supports."""

_EPS = torch.finfo(torch.float64).eps

_STEPS = 2
"""One step solves a system; since it does so by the inverse, which costs digits, another one follows."""


def maximise(Q: Tensor, b: Tensor) -> Tensor:
    """The weights that maximise ``b'alpha - 1/2 alpha'Q alpha``, in float64, of shape ``(..., N)`` like ``b``.

    ``Q`` is symmetric, of shape ``(..., N, N)``. A problem with an entry that is not finite gets weights that are NaN.
    """
    largest = torch.maximum(Q.abs().amax((-1, -2)), b.abs().amax(-1)).clamp_min(1e-300)
    # Numbers of the size of one stay in the range of float64; a power of two changes no digit of them.
    scale = (largest.frexp().mantissa / largest).unsqueeze(-1)
    Q, b = Q * scale.unsqueeze(-1), (b * scale).unsqueeze(-2)
    return _best(Q, b, _candidates(Q, b))


def _candidates(Q: Tensor, b: Tensor) -> Tensor:
    """For each support a point of the simplex, of shape ``(..., supports, N)``: the solution of its system, clipped."""
    n = b.shape[-1]
    piece = torch.arange(n, device=b.device)
    member = (torch.arange(1, 2**n, device=b.device).unsqueeze(-1) >> piece & 1).to(torch.bool)
    identity = torch.eye(n, dtype=b.dtype, device=b.device)
    shortest = (Q * identity).sum(-1).unsqueeze(-2).where(member, torch.inf).argmin(-1, keepdim=True)
    origin = (piece == shortest).to(b.dtype)
    P = (identity - origin.unsqueeze(-2)) * member.unsqueeze(-1)
    PQ = (P.flatten(-3, -2) @ Q).view_as(P)
    back = _inverse(PQ @ P.mT, identity) @ P
    alpha = origin
    for _ in range(_STEPS):
        slope = P @ (b - alpha @ Q).unsqueeze(-1)
        alpha = alpha + (slope.mT @ back).squeeze(-2)
    alpha = alpha.clamp_min(0.0)
    return alpha / alpha.sum(-1, keepdim=True)


def _inverse(M: Tensor, identity: Tensor) -> Tensor:
    """The inverses of positive definite matrices, by the sweep operator. Rows of zeros are taken for those of a one."""
    scale = (M * identity).sum(-1).rsqrt().nan_to_num(nan=1.0, posinf=1.0)
    scales = scale.unsqueeze(-1) * scale.unsqueeze(-2)
    swept = torch.where(identity == 1.0, 1.0, M * scales)
    for k in range(M.shape[-1]):
        # Of the k-th column a with the pivot d = a_k: -1/d takes the place of d, a/d that of a, and all others lose
        # a_i a_j / d. The column with d - 1 instead of d does this in one product, except for a 2 on the diagonal.
        column = swept.select(-1, k)
        changed = column - identity.select(-1, k)
        swept = swept.addcmul(changed.unsqueeze(-1), (changed / column.narrow(-1, k, 1)).unsqueeze(-2), value=-1.0)
    return (2.0 * identity - swept) * scales


def _best(Q: Tensor, b: Tensor, candidates: Tensor) -> Tensor:
    """The candidate with the smallest gap; of those whose gaps drown in rounding, the one with the fewest pieces."""
    r = b - candidates @ Q
    gap = (r.amax(-1) - (candidates * r).sum(-1)).nan_to_num(nan=torch.inf)
    noise = (b.shape[-1] + 3) * _EPS * (b.abs() + candidates @ Q.abs()).amax(-1)
    is_best = gap <= gap.fmax(noise).amin(-1, keepdim=True)
    best = (candidates > 0.0).sum(-1).where(is_best, LIMIT + 1).argmin(-1, keepdim=True)
    return candidates.take_along_dim(best.unsqueeze(-1), -2).squeeze(-2)
