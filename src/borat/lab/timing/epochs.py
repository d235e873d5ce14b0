"""The time of an epoch by the size of the bundle, relative to SGD.

An epoch is many times the same: a forward and a backward pass, which no optimizer changes, and the optimizer's call.
Both are timed by themselves, with the model's own gradients, and added up: so the small differences between bundle
sizes are not lost in the noise of the large common part. All sizes take turns, and medians are compared. The time to
load the data is not part of it, nor is communication between devices.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from borat.lab.baselines import make_loss, make_optimizer, take_step
from borat.lab.config import RunConfig
from borat.lab.models import make_model
from borat.lab.timing.shapes import Runtime

TimedBatch = tuple[Tensor, list[Tensor]]
"""The loss and the gradients of a batch."""

WARM_UP = 2
"""Passes that are not measured."""


@dataclass(frozen=True)
class EpochTime:
    """The time of an epoch with one optimizer."""

    name: str
    passes: float
    """Seconds of the forward and backward passes."""
    steps: float
    """Seconds of the optimizer's calls."""

    @property
    def seconds(self) -> float:
        return self.passes + self.steps


def row_name(bundle_size: int) -> str:
    return "SGD" if bundle_size == 1 else f"BORAT N={bundle_size}"


def measure(
    runtime: Runtime,
    *,
    device: torch.device | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[EpochTime]:
    """Time each bundle size; 1 is SGD with momentum. ``progress`` is called with done and total measurements."""
    progress = progress or (lambda done, total: None)
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = make_model(runtime.model, input_shape=runtime.input_shape, classes=runtime.classes).to(device)
    if len(runtime.input_shape) == 3:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # as in training
    pieces = max(*runtime.bundle_sizes, 2) - 1
    total = WARM_UP + pieces + runtime.rounds
    seconds, batches = [], []
    for number in range(WARM_UP + pieces):
        elapsed, loss = _time_passes(model, runtime, device)
        if number >= WARM_UP:
            seconds.append(elapsed)
            batches.append((loss, [p.grad.clone() for p in model.parameters() if p.grad is not None]))
        progress(number + 1, total)
    steps: dict[int, list[float]] = {size: [] for size in runtime.bundle_sizes}
    for number in range(runtime.rounds):
        for size, times in steps.items():
            times.append(_time_bundle(model, size, batches, device))
        progress(WARM_UP + pieces + number + 1, total)
    count = -(-runtime.examples // runtime.batch_size)
    passes = count * statistics.median(seconds)
    return [EpochTime(row_name(size), passes, count * statistics.median(times)) for size, times in steps.items()]


def _time_bundle(model: nn.Module, size: int, batches: Sequence[TimedBatch], device: torch.device) -> float:
    """The seconds of a call, as a mean over a bundle. A bundle before allocates what the optimizer keeps."""
    optimizer = _optimizer(model, size)
    calls = batches[: max(size - 1, 1)]
    for loss, gradients in calls:
        _time_step(optimizer, model, loss, gradients, device)
    return sum(_time_step(optimizer, model, loss, gradients, device) for loss, gradients in calls) / len(calls)


def _optimizer(model: nn.Module, bundle_size: int) -> Optimizer:
    """As in training; with a tiny learning rate, so that the weights stay where the gradients were measured."""
    name = "sgd" if bundle_size == 1 else "borat"
    return make_optimizer(model, RunConfig(optimizer=name, bundle_size=max(bundle_size, 2), lr=1e-6))


def _time_passes(model: nn.Module, runtime: Runtime, device: torch.device) -> tuple[float, Tensor]:
    inputs = torch.randn(runtime.batch_size, *runtime.input_shape, device=device)
    if inputs.ndim == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(runtime.classes, (runtime.batch_size,), device=device)
    criterion = make_loss(RunConfig(loss=runtime.loss))
    model.zero_grad()
    start = _now(device)
    loss = criterion(model(inputs), labels)
    loss.backward()
    return _now(device) - start, loss.detach()


def _time_step(
    optimizer: Optimizer, model: nn.Module, loss: Tensor, gradients: list[Tensor], device: torch.device
) -> float:
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        p.grad = gradient
    start = _now(device)
    take_step(optimizer, loss)
    return _now(device) - start


def _now(device: torch.device) -> float:
    """The time when the device has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
