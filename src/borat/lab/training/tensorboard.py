"""TensorBoard events of a run in training."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from borat.lab.baselines import drops_batches
from borat.monitor import Monitor

EVERY = 10
"""Number of batches, or of updates, between two events."""


class Events(ExitStack):
    """Event files of a run; nothing is written if the folder is None.

    Events are appended to the files, and TensorBoard reads up to the last complete one. A resumed run purges the events
    of the interrupted one for batches that are trained on again.
    """

    def __init__(self, folder: Path | None, optimizer: Any, batches_done: int) -> None:
        super().__init__()
        self.writer: Any = None
        if folder is None:
            return
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        self.writer = SummaryWriter(str(folder), purge_step=batches_done + 1)
        self.callback(self.writer.close)
        if drops_batches(optimizer):
            self.callback(Monitor(optimizer, self.writer, every=EVERY, first_step=batches_done).close)

    def batch(self, number: int, loss: Tensor) -> None:
        if self.writer is not None and number % EVERY == 0:
            self.writer.add_scalar("batch/loss", loss.item(), number)

    def epoch(self, batches_done: int, record: dict[str, Any]) -> None:
        if self.writer is not None:
            for name in (name for name, value in record.items() if isinstance(value, float)):
                self.writer.add_scalar(f"epoch/{name}", record[name], batches_done)
