"""Common interface of all optimizers: take a step, evaluate the result, read the step size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from borat._optim.borat import BORAT
from borat._state import sharding
from borat._state.store import world_size


def take_step(optimizer: Optimizer, loss: Tensor) -> None:
    """Update the parameters from their gradients and the loss, without evaluating the model again.

    Processes that train together pass the losses of their parts of the batch; the step is that of the whole batch.
    """
    if not drops_batches(optimizer):  # the optimizers of this library average the loss themselves
        loss = loss.detach()
        if (processes := world_size(None)) > 1:
            loss = sharding.full_tensor(loss) / processes
            dist.all_reduce(loss)
    optimizer.step(lambda: loss)  # type: ignore[arg-type,return-value] # others ignore the loss


@contextmanager
def evaluating(optimizer: Any) -> Iterator[None]:
    """Move the model to the point at which the method is evaluated, and back afterwards, bit for bit.

    BORAT is evaluated at the centre of its bundle, FreeBORAT, Schedule-Free and DoG at their averages, the others at
    the current point.
    """
    if not hasattr(optimizer, "eval"):
        yield
        return
    optimizer.eval()
    try:
        yield
    finally:
        optimizer.train()


def drops_batches(optimizer: Optimizer) -> bool:
    """Return True for optimizers of this library, which drop batches with a non-finite loss."""
    return hasattr(type(optimizer), "dropped_batches")  # reading the property of the optimizer would sync the device


def needs_flush(optimizer: Optimizer) -> bool:
    """Return True at the end of a run that was too short for a whole bundle: only a flush updates the weights.

    In longer runs, left-over batches make no update: an update from few batches can undo much of the training.
    """
    return isinstance(optimizer, BORAT) and not optimizer.state_dict()["param_groups"][0]["bundle"]["updates"]


def is_lost(optimizer: Optimizer, loss: float) -> bool:
    """Return True if the loss is not finite and the optimizer cannot drop the batch: the weights cannot recover."""
    return not drops_batches(optimizer) and not math.isfinite(loss)


def step_size(optimizer: Optimizer) -> float | None:
    """Return the step size of the last update, in the first parameter group.

    It is None before the first update, and for methods with a step size for each coordinate.
    """
    if (step := getattr(optimizer, "last_step", None)) is not None:  # of an optimizer of this library
        return float(step.step_size[0] if isinstance(step.step_size, tuple) else step.step_size)
    if isinstance(optimizer, torch.optim.SGD):
        return float(optimizer.param_groups[0]["lr"])
    group = optimizer.param_groups[0]
    if "d" in group:  # Prodigy's estimate of the distance to the solution
        return float(group["d"] * group["lr"]) if group["k"] else None
    size = getattr(optimizer, "step_size", None)
    return None if size is None else float(size)
