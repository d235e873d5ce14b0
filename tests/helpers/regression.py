"""A least-squares problem that a linear model interpolates, with a fresh batch for each step.

All runs have the same start and the same batches, so trajectories can be compared exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.testing import assert_close

assert_same = partial(assert_close, rtol=0, atol=0)

_GENERATOR = torch.Generator().manual_seed(0)
_X = torch.randn(64, 8, 4, generator=_GENERATOR, dtype=torch.float64)
_Y = _X @ torch.tensor([[0.6, -0.2], [0.3, 0.4], [-0.5, 0.1], [0.2, 0.7]], dtype=torch.float64) + 0.3
_WEIGHT, _BIAS = torch.randn(4, 2, generator=_GENERATOR), torch.randn(2, generator=_GENERATOR)


def fresh(dtype: torch.dtype = torch.float32) -> list[Parameter]:
    """Return the initial parameters: a matrix and a vector."""
    return [Parameter(_WEIGHT.to(dtype, copy=True)), Parameter(_BIAS.to(dtype, copy=True))]


def values(params: Iterable[Tensor]) -> list[Tensor]:
    return [p.detach().clone() for p in params]


def loss_of(tensors: Sequence[Tensor], batch: int | slice) -> Tensor:
    weight, bias = (x.double() for x in tensors)
    return (_X[batch] @ weight + bias - _Y[batch]).square().mean()


def total_loss(params: Sequence[Tensor]) -> float:
    return float(loss_of(values(params), slice(None)))


def closure(opt: Any, params: Sequence[Tensor], t: int, view: Callable[..., list] = list) -> Callable[[], Tensor]:
    def evaluate() -> Tensor:
        opt.zero_grad()
        loss = loss_of(view(params), t % len(_X))
        loss.backward()
        return loss

    return evaluate


def take(opt: Any, params: Sequence[Tensor], steps: Iterable[int], view: Callable[..., list] = list) -> list[Tensor]:
    """Take steps; return all points, as the loss sees the parameters."""
    points = []
    for t in steps:
        opt.step(closure(opt, params, t, view))
        points += values(view(params))
    return points


def run(cls: Any, options: dict, params: Sequence[Tensor], view: Callable[..., list] = list) -> list[Tensor]:
    """Return the points of a new optimizer's first dozen steps."""
    return take(cls(params, **options), params, range(12), view)
