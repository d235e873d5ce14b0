"""Updates and inner products of lists of tensors, with as few passes over memory as can be.

Bytes moved are what an optimizer costs, so that each operation is here up to three times, by what the tensors allow: as
one pass of our own kernels (:mod:`borat.kernels`); with ``torch._fused_sgd_``, which does in one pass what would
otherwise take two to five, its momentum, dampening and learning rate being free coefficients here; and plainly. The
first two read tensors as runs of memory. This is the one place that chooses; Adam's metric has its own operations in
:mod:`borat.metric`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

import torch
from torch import Tensor

from borat import kernels
from borat.kernels import Array, Term

_FUSED_DEVICES = ("cpu", "cuda")
_RUN_DTYPES = (torch.float32, torch.float64)
"""On the CPU of PyTorch 2.13, the fused kernel is wrong for half-precision tensors of 16 elements or more."""

_SMALL = 2**14
"""Tensors of at most this many elements are multiplied together: calling the kernels costs more than copying."""


class Backend(Enum):
    """Who computes an update."""

    OWN = "own"
    FUSED = "fused"
    PLAIN = "plain"


def backend_for(device: torch.device, dtype: torch.dtype, are_runs: bool) -> Backend:
    """The fastest backend for tensors; ``are_runs`` says that they are dense and alike in their layouts."""
    if not are_runs or dtype not in _RUN_DTYPES:
        return Backend.PLAIN
    if device.type == "cpu" and kernels.are_there():
        return Backend.OWN
    return Backend.FUSED if device.type in _FUSED_DEVICES else Backend.PLAIN


def products(
    gradients: list[Tensor],
    rows: Sequence[list[Tensor]],
    matrices: Sequence[Tensor],
    n: int,
    backend: Backend,
    *,
    precise: bool = False,
) -> Tensor | Array:
    """``<g, g_k>`` for the first ``n`` kept gradients and then ``<g, g>``, summed over the tensors in float64.

    The kept gradients are given twice: as lists of tensors, and for each tensor as the rows of a matrix. The products
    themselves are taken in the tensors' precision, or float32 if that is lower; ``precise`` ones, and those of our own
    kernels, in float64.
    """
    if backend is Backend.OWN:
        return kernels.products(gradients, [*rows[:n], gradients])
    least = torch.float64 if precise else torch.float32
    vectors = [at_least(g, least) for g in gathered([flat(g) for g in gradients])]
    own = torch.stack([torch.dot(g, g) for g in vectors]).sum(0, keepdim=True, dtype=torch.float64)
    if n == 0:
        return own
    blocks = [at_least(m, least) for m in gathered([m[:n] for m in matrices])]
    cross = [torch.mv(m, g) for m, g in zip(blocks, vectors, strict=True)]
    return torch.cat((torch.stack(cross).sum(0, dtype=torch.float64), own))


def gathered(tensors: list[Tensor]) -> list[Tensor]:
    """The large tensors, and all small ones joined along their last dimension."""
    large = [t for t in tensors if t.shape[-1] > _SMALL]
    small = [t for t in tensors if t.shape[-1] <= _SMALL]
    return [*large, torch.cat(small, dim=-1)] if small else large


def flat(x: Tensor) -> Tensor:
    """The elements of a dense tensor as a vector, in the order of memory."""
    return x.as_strided((x.numel(),), (1,))


def at_least(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.element_size() < dtype.itemsize else x


def move(
    weights: list[Tensor],
    base: list[Tensor],
    terms: Sequence[Term],
    backend: Backend,
    *,
    old_base: list[Tensor] | None = None,
    last_term: list[Tensor] | None = None,
) -> None:
    """``weights = base - sum of coefficient * tensor``. ``base`` may be ``weights``.

    On the way, ``old_base`` and ``last_term`` get a copy of the base and of the last term's tensors. The result has the
    same bits with and without them.
    """
    if backend is Backend.OWN:
        kernels.move(weights, base, terms, old_base=old_base, last_term=last_term)
        return
    if old_base is not None:
        combine(base, out=old_base)
    *others, (coefficient, last) = terms
    combine(base, [(-c, x) for c, x in others], out=weights)
    descend(weights, last, coefficient, backend is Backend.FUSED, keep=last_term)


def move_with_momentum(
    weights: list[Tensor],
    base: list[Tensor],
    terms: Sequence[Term],
    velocity: list[Tensor],
    backend: Backend,
    *,
    momentum: float,
    scale: float,
) -> float:
    """Nesterov's update: ``v = momentum * v - u; weights = base + momentum * v - u``.

    ``u`` is the sum of coefficient * tensor. ``velocity`` holds ``-v / scale``; the new scale is returned. May use the
    tensors of the first term as space.
    """
    if backend is Backend.OWN:
        kernels.move(weights, base, terms, velocity=velocity, decay=momentum * scale, momentum=momentum)
        return 1.0
    step, direction = weighted_sum(terms)
    combine(base, out=weights)
    fused = backend is Backend.FUSED
    return descend_with_momentum(weights, direction, velocity, step=step, momentum=momentum, scale=scale, fused=fused)


def combine(base: list[Tensor], terms: Sequence[Term] = (), *, out: list[Tensor]) -> None:
    """``out = base + sum of coefficient * tensor``. ``base`` may be ``out``."""
    if not terms:
        if out is not base:
            torch._foreach_copy_(out, base)
        return
    coefficient, first = terms[0]
    for o, b, x in zip(out, base, first, strict=True):
        torch.add(b, x, alpha=coefficient, out=o)
    for coefficient, tensors in terms[1:]:
        torch._foreach_add_(out, tensors, alpha=coefficient)


def weighted_sum(terms: Sequence[Term]) -> Term:
    """The sum of coefficient * tensor, as a single term. Uses the tensors of the first term as space for it.

    A single term is returned as it is, and a common factor is left for later: both save a pass.
    """
    step, total = terms[0]
    size = sum(abs(coefficient) for coefficient, _ in terms)
    ratio = 1.0 if total[0].dtype == torch.float16 else 1e3
    if len(terms) > 1 and size > ratio * abs(step):  # the sum could overflow: take a mean instead
        torch._foreach_mul_(total, step / size)
        step = size
    for coefficient, x in terms[1:]:
        torch._foreach_add_(total, x, alpha=coefficient / step)
    return step, total


def descend(
    params: list[Tensor], direction: list[Tensor], step: float, fused: bool, keep: list[Tensor] | None = None
) -> None:
    """``params -= step * direction`` and, on the way, ``keep = direction``.

    The result has the same bits with and without ``keep``.
    """
    if fused:
        _fused_sgd(params, direction, keep or [], momentum=1.0 if keep else 0.0, lr=step, first=True)
        return
    torch._foreach_add_(params, direction, alpha=-step)
    if keep:
        torch._foreach_copy_(keep, direction)


def descend_with_momentum(
    params: list[Tensor],
    direction: list[Tensor],
    velocity: list[Tensor],
    *,
    step: float,
    momentum: float,
    scale: float,
    fused: bool,
) -> float:
    """Nesterov's update ``v = momentum * v - step * direction; params += momentum * v - step * direction``.

    ``velocity`` holds ``-v / scale`` (while it is zero, any scale would do, and 0 is passed); the new scale is
    returned. In units of the geometric mean ``s' = sqrt(scale * step)`` the update is exactly one pass of a fused SGD
    with other coefficients:

        buffer = (momentum * scale / s') * buffer + (step / s') * direction    = -v / s'
        params -= step * (direction + (momentum * scale / s') * buffer)        = step * direction - momentum * v
    """
    scale = scale or step or 1.0
    if fused and momentum and 1e-6 <= step / scale <= 1e6:
        new_scale = math.sqrt(scale) * math.sqrt(step)
        coefficient = momentum * scale / new_scale
        _fused_sgd(params, direction, velocity, coefficient, step, dampening=1.0 - step / new_scale, nesterov=True)
        return new_scale
    torch._foreach_mul_(velocity, momentum * scale)
    torch._foreach_add_(velocity, direction, alpha=step)
    torch._foreach_add_(params, direction, alpha=-step)
    torch._foreach_add_(params, velocity, alpha=-momentum)
    return 1.0


def _fused_sgd(
    params: list[Tensor],
    direction: list[Tensor],
    buffers: list[Tensor],
    momentum: float,
    lr: float,
    *,
    dampening: float = 0.0,
    nesterov: bool = False,
    first: bool = False,
) -> None:
    torch._fused_sgd_(
        params,
        direction,
        buffers,
        weight_decay=0.0,
        momentum=momentum,
        lr=lr,
        dampening=dampening,
        nesterov=nesterov,
        maximize=False,
        is_first_step=first,
    )
