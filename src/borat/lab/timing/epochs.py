"""Time of an epoch by bundle size, relative to SGD.

A batch has two parts: forward and backward passes, which do not depend on the optimizer, and the optimizer's step. They
are timed separately, with the model's gradients, and added up, so that noise in the passes does not hide the small
differences between bundle sizes. All sizes take turns, and medians are compared. Data loading and communication between
devices are not included.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from borat.lab.baselines import make_loss, make_optimizer
from borat.lab.config import RunConfig
from borat.lab.models import make_model
from borat.lab.timing.optimizers import WARM_UP, Progress, ignore, now, take_turns, time_step
from borat.lab.timing.shapes import Runtime

TimedBatch = tuple[Tensor, list[Tensor]]
"""The loss and the gradients of a batch."""


@dataclass(frozen=True)
class EpochTime:
    """The time of an epoch with one optimizer."""

    name: str
    passes: float
    """Seconds for the forward and backward passes."""
    steps: float
    """Seconds for the optimizer's steps."""

    @property
    def seconds(self) -> float:
        return self.passes + self.steps


def measure(runtime: Runtime, progress: Progress | None = None) -> list[EpochTime]:
    """Time each bundle size; 1 is SGD with momentum."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = make_model(runtime.model, input_shape=runtime.input_shape, classes=runtime.classes).to(device)
    if len(runtime.input_shape) == 3:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # as in training
    first = WARM_UP + max(*runtime.bundle_sizes, 2) - 1
    total, notify = first + runtime.rounds + WARM_UP, progress or ignore
    timed = []
    for done in range(first):
        timed.append(_time_passes(model, runtime, device))
        notify(done + 1, total)
    seconds, batches = zip(*timed[WARM_UP:], strict=True)
    measures = {
        "SGD" if size == 1 else f"BORAT N={size}": partial(_time_bundle, model, size, batches)
        for size in runtime.bundle_sizes
    }
    steps = take_turns(measures, runtime.rounds, lambda done, _: notify(first + done, total))
    count = -(-runtime.examples // runtime.batch_size)
    passes = count * statistics.median(seconds)
    return [EpochTime(name, passes, count * statistics.median(times)) for name, times in steps.items()]


def _time_passes(model: nn.Module, runtime: Runtime, device: torch.device) -> tuple[float, TimedBatch]:
    inputs = torch.randn(runtime.batch_size, *runtime.input_shape, device=device)
    if inputs.ndim == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(runtime.classes, (runtime.batch_size,), device=device)
    criterion = make_loss(RunConfig(loss=runtime.loss))
    model.zero_grad()
    start = now(device)
    loss = criterion(model(inputs), labels)
    loss.backward()
    elapsed = now(device) - start
    return elapsed, (loss.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None])


def _time_bundle(model: nn.Module, size: int, batches: Sequence[TimedBatch], turn: int) -> float:
    """Return the mean seconds per step over a bundle, after a first bundle that allocates the state.

    A tiny learning rate keeps the weights where the gradients were measured.
    """
    name = "sgd" if size == 1 else "borat"
    optimizer = make_optimizer(model, RunConfig(optimizer=name, bundle_size=max(size, 2), lr=1e-6))
    params, calls = list(model.parameters()), batches[: max(size - 1, 1)]
    for _ in range(2):
        seconds = sum(time_step(optimizer, params, gradients, loss) for loss, gradients in calls)
    return seconds / len(calls)
