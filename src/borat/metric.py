"""FreeBORAT's bundle in Adam's metric: its inner products, and how it moves the model.

Pieces are lists of gradients, oldest first; the newest is the parameters' own. The metric is
``D = correction * s + eps`` with ``s = sqrt(beta2 * rms^2 + (1 - beta2) * g^2)``. What is kept is the *root* of the
mean square: its range is that of the gradients, while their squares leave it where gradients are below 1e-23 or above
1e19. It is computed again for the move, where it is stored, so that a batch which is dropped after its products were
seen has changed nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from borat import kernels
from borat.kernels import Array
from borat.kernels import Metric as Metric
from borat.vectors import Backend, at_least, flat, gathered

_LARGE = 1e30


def columns(pieces: int) -> int:
    """How many sums there are of so many pieces."""
    return pieces * (pieces + 1) + pieces + 1


def sums(
    pieces: Sequence[list[Tensor]], weights: list[Tensor], metric: Metric, backend: Backend, *, precise: bool
) -> Tensor | Array:
    """All that the bundle has to know, as one float64 vector: on the host if our own kernels measured it.

    For pieces ``j`` and ``i <= j`` first ``<g_i, g_j / D>`` and then ``<g_i, g_j / D^2>``; then ``<g_j, z>``; last, for
    the newest, ``<g, z - y>``. Here ``y`` are the weights and ``z`` is the centre.
    """
    if backend is Backend.OWN:
        return kernels.measure(pieces, weights, metric)
    least = torch.float64 if precise else torch.float32

    def vectors(tensors: list[Tensor]) -> list[Tensor]:
        return [at_least(x, least) for x in gathered([flat(x) for x in tensors])]

    total = torch.zeros(columns(len(pieces)), dtype=torch.float64, device=weights[0].device)
    lower = torch.ones(len(pieces), len(pieces), dtype=torch.bool, device=weights[0].device).tril_()
    in_layout = [_laid_out(y, z) for y, z in zip(weights, metric.centre, strict=True)]
    lists = [vectors(tensors) for tensors in (in_layout, metric.centre, metric.rms, *pieces)]
    for y, z, rms, *block in zip(*lists, strict=True):
        G = torch.stack(block)
        D = _root(rms, G[-1], metric.beta2).mul_(metric.correction).add_(metric.eps)
        once = G / D
        pairs = [(once @ G.mT)[lower], (once @ (G / D).mT)[lower]]
        total += torch.cat([*pairs, G @ z, torch.dot(G[-1], z - y).reshape(1)])
    return total


def roll(
    pieces: Sequence[list[Tensor]],
    weights: list[Tensor],
    metric: Metric,
    coefficients: Sequence[float],
    backend: Backend,
    *,
    keep: list[Tensor] | None,
    decay: float,
    pull: float,
    ratio: float,
    beta: float,
    before_projection: bool,
) -> None:
    """Move centre and weights, and store what is kept.

    With ``u`` the sum of coefficient * piece / D, the centre ``z`` becomes ``z' = z - u - decay * y``. In the average
    ``x = z + (y - z) / beta`` it gets the weight ``1 - pull``, so that ``y' = z' + pull * (ratio * (y - z) - beta *
    (z' - z))``, where ``ratio`` is 1 unless ``beta`` has changed. Where ``z'`` is to be projected first, ``y`` becomes
    the average, and :func:`after_projection` does the rest. ``keep`` gets the newest piece; it may be one of the older
    ones.
    """
    options = {"decay": decay, "pull": pull, "ratio": ratio, "beta": beta, "before_projection": before_projection}
    if backend is Backend.OWN:
        kernels.roll(pieces, weights, metric, coefficients, keep=keep, **options)  # type: ignore[arg-type]
        return
    # A short gradient has a coefficient that float32 may not hold, though it holds their product.
    dtype = torch.float64 if max(map(abs, coefficients)) > _LARGE else metric.rms[0].dtype
    for i, (y, z, rms) in enumerate(zip(weights, metric.centre, metric.rms, strict=True)):
        root = _root(rms, pieces[-1][i].to(rms.dtype), metric.beta2)
        u = torch.zeros_like(rms, dtype=dtype)
        for c, piece in zip(coefficients, pieces, strict=True):
            u.add_(piece[i], alpha=c)
        u.div_(root * metric.correction + metric.eps).add_(y, alpha=decay)
        apart = ratio * (y.to(rms.dtype) - z.to(rms.dtype))
        rms.copy_(root)
        if before_projection:
            y.copy_(apart.div_(beta).add_(z))
            z.sub_(u)
        else:
            old = z.to(rms.dtype, copy=True)
            z.sub_(u)
            y.copy_(apart.sub_(z - old, alpha=beta).mul_(pull).add_(z))
        if keep is not None:
            keep[i].copy_(pieces[-1][i])


def after_projection(weights: list[Tensor], centre: list[Tensor], *, pull: float, beta: float) -> None:
    """``y' = z' + pull * beta * (x - z')``, after :func:`roll` has left the average ``x`` in the weights."""
    torch._foreach_lerp_(weights, centre, 1.0 - pull * beta)


def _laid_out(x: Tensor, like: Tensor) -> Tensor:
    """Parameters may lie in memory with gaps; what is kept of them does not."""
    return x if x.stride() == like.stride() else torch.empty_like(like).copy_(x)


def _root(rms: Tensor, g: Tensor, beta2: float) -> Tensor:
    """Without squares, which would leave the range of float32."""
    return torch.hypot(rms * math.sqrt(beta2), g * math.sqrt(1.0 - beta2))
