"""Functions of the algorithms for tensors on a device."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from borat._numbers.dual_batched import LIMIT, BatchedDual
from borat._numbers.ops import Ops


def torch_ops(pieces: int, device: torch.device) -> Ops:
    """Return the functions for float64 tensors on a device, for duals of ``pieces`` pieces and a constant one."""
    return Ops(
        maximum=torch.maximum,
        minimum=torch.minimum,
        where=torch.where,
        sqrt=torch.sqrt,
        split=partial(torch.split_with_sizes, dim=-1),
        join=lambda *parts: torch.cat([part.reshape(-1) for part in parts]),
        pad=lambda matrix: pad(matrix, (0, 1, 0, 1)),
        dual=_dual(pieces + 1, device),
        index=torch.arange(pieces, dtype=torch.float64, device=device),
    )


def _dual(pieces: int, device: torch.device) -> BatchedDual:
    arange = partial(torch.arange, dtype=torch.float64, device=device)
    return BatchedDual(pieces, arange, torch.where, partial(torch.amax, dim=-1))


def solve_batch(Q: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights, values and supports of a batch of duals: see :func:`borat.solve_dual`."""
    for name, tensor in (("Q", Q), ("b", b)):
        if tensor.is_complex():
            raise ValueError(f"{name} must be real, got a tensor of {tensor.dtype}")
    if Q.ndim < 2 or Q.shape[-2] != Q.shape[-1]:
        raise ValueError(f"Q must hold square matrices, got shape {tuple(Q.shape)}")
    if b.ndim < 1 or b.shape[-1] != Q.shape[-1]:
        raise ValueError(f"Q and b must agree in size, got Q of shape {tuple(Q.shape)} and b of shape {tuple(b.shape)}")
    if not 1 <= b.shape[-1] <= LIMIT:
        raise ValueError(f"a batch of problems must have 1 to {LIMIT} pieces, got {b.shape[-1]}")
    try:
        shape = torch.broadcast_shapes(Q.shape[:-2], b.shape[:-1])  # type: ignore[no-untyped-call]
    except RuntimeError:
        got = f"{tuple(Q.shape[:-2])} and {tuple(b.shape[:-1])}"
        raise ValueError(f"Q and b must have batch dimensions that broadcast, got {got}") from None
    n = b.shape[-1]
    Q, b = Q.detach().to(torch.float64).expand(*shape, n, n), b.detach().to(torch.float64).expand(*shape, n)
    Q = 0.5 * Q + 0.5 * Q.mT
    alpha = _dual(n, b.device)(Q, b)
    value = (alpha * (b - 0.5 * (Q @ alpha.unsqueeze(-1)).squeeze(-1))).sum(-1)
    return alpha, value, alpha > 0.0
