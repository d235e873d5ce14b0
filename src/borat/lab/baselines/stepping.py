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

from borat._numbers.step_info import StepInfo
from borat._state import sharding
from borat._state.store import Processes


def take_step(optimizer: Optimizer, loss: Tensor) -> None:
    """Update the parameters from their gradients and the loss; the model is not evaluated again.

    Processes that train together pass the losses of their parts of the batch, and take the step of the whole batch.
    """
    if not drops_batches(optimizer):  # else it is one of ours, which average the loss by themselves
        loss = _mean_over_processes(loss.detach())
    optimizer.step(lambda: loss)  # type: ignore[arg-type,return-value] # who needs the loss asks for it


@contextmanager
def evaluating(optimizer: Optimizer) -> Iterator[None]:
    """Put the model where its method evaluates it, and afterwards back, bit for bit.

    BORAT evaluates the centre of its bundle, FreeBORAT, Schedule-Free and DoG their averages, the others the current
    point.
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


def last_step(optimizer: Optimizer) -> StepInfo | None:
    """Return the last update of an optimizer of this library; None before the first, and for other optimizers."""
    return getattr(unwrap(optimizer), "last_step", None)


def drops_batches(optimizer: Optimizer) -> bool:
    """True if it drops batches whose loss is not finite, as the optimizers of this library do."""
    return hasattr(type(unwrap(optimizer)), "dropped_batches")  # of the optimizer itself, one would wait for a GPU


def step_size(optimizer: Optimizer) -> float | None:
    """The step size of the last update, for methods that have a single one; None before the first update.

    With several parameter groups it is that of the first.
    """
    inner = unwrap(optimizer)
    if (step := last_step(inner)) is not None:
        return step.step_size[0] if isinstance(step.step_size, tuple) else step.step_size
    if isinstance(inner, torch.optim.SGD):
        return float(inner.param_groups[0]["lr"])
    size = getattr(inner, "step_size", None)
    return None if size is None else float(size)


def _mean_over_processes(loss: Tensor) -> Tensor:
    processes = Processes(None, reduce_loss=True).world_size
    if processes > 1:
        loss = sharding.whole(loss) / processes
        dist.all_reduce(loss)
    return loss


def unwrap(optimizer: Optimizer) -> Any:
    """The optimizer that Fabric's wrapper hands its calls to: the wrapper would keep what is assigned to itself."""
    return getattr(optimizer, "optimizer", optimizer)
