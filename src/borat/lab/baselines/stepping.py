"""One way to use all optimizers: a step, a look at the model, and how long the step was.

Each function also takes an optimizer that Lightning Fabric has wrapped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from borat import sharding
from borat.optimizer import BORAT


def take_step(optimizer: Optimizer, loss: Tensor) -> None:
    """Update the parameters from their gradients and the loss; the model is not evaluated again.

    Processes that train together pass the losses of their parts of the batch, and take the step of the whole batch.
    """
    if not isinstance(unwrap(optimizer), BORAT):  # which averages the loss itself
        loss = _mean_over_processes(loss.detach())
    optimizer.step(lambda: loss)  # type: ignore[arg-type,return-value] # who needs the loss asks for it


@contextmanager
def evaluating(optimizer: Optimizer) -> Iterator[None]:
    """Put the model where its method evaluates it, and afterwards back, bit for bit.

    BORAT evaluates the centre of its bundle, Schedule-Free and DoG their averages, the others the current point.
    """
    inner = unwrap(optimizer)
    if not hasattr(inner, "eval"):
        yield
        return
    inner.eval()
    try:
        yield
    finally:
        inner.train()


def step_size(optimizer: Optimizer) -> float | None:
    """The step size of the last update, for methods that have a single one; None before the first update."""
    inner = unwrap(optimizer)
    if isinstance(inner, BORAT):
        return _step_size_of_bundle(inner)
    if isinstance(inner, torch.optim.SGD):
        return float(inner.param_groups[0]["lr"])
    size = getattr(inner, "step_size", None)
    return None if size is None else float(size)


def _step_size_of_bundle(optimizer: BORAT) -> float | None:
    """The learning rate less the share of the bound, which makes no step; without a bound there is none."""
    step = optimizer.last_step
    if step is None:
        return None
    lr = step.lr[0] if isinstance(step.lr, tuple) else step.lr
    return lr if optimizer.bundle_size == 1 else lr * (1.0 - step.alpha[-1])


def _mean_over_processes(loss: Tensor) -> Tensor:
    processes = sharding.world_size(None)
    if processes > 1:
        loss = sharding.whole(loss) / processes
        dist.all_reduce(loss)
    return loss


def unwrap(optimizer: Optimizer) -> Any:
    """The optimizer that Fabric's wrapper hands its calls to: the wrapper would keep what is assigned to itself."""
    return getattr(optimizer, "optimizer", optimizer)
