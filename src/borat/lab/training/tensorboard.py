"""TensorBoard events of a run while it trains."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from borat.lab.baselines.stepping import drops_batches, unwrap
from borat.monitor import Monitor

EVERY = 10
"""Batches, or updates, between two entries."""


class Events:
    """The event files of a run, or nothing where there is no folder for them.

    They grow with every entry, which TensorBoard reads up to the last whole one. A resumed run hides what the
    interrupted one wrote of batches that are now trained on again.
    """

    def __init__(self, folder: Path | None, optimizer: Optimizer, batches_done: int) -> None:
        self._writer: Any = None
        self._monitor: Monitor | None = None
        if folder is None:
            return
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        self._writer = SummaryWriter(str(folder), purge_step=batches_done + 1)
        if drops_batches(optimizer):
            self._monitor = Monitor(unwrap(optimizer), self._writer, every=EVERY, first_step=batches_done)

    def batch(self, number: int, loss: Tensor) -> None:
        if self._writer is not None and number % EVERY == 0:
            self._writer.add_scalar("batch/loss", loss.item(), number)

    def epoch(self, batches_done: int, record: dict[str, Any]) -> None:
        if self._writer is None:
            return
        for name, value in record.items():
            if isinstance(value, float):
                self._writer.add_scalar(f"epoch/{name}", value, batches_done)

    def __enter__(self) -> Events:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._monitor is not None:
            self._monitor.close()
        if self._writer is not None:
            self._writer.close()
