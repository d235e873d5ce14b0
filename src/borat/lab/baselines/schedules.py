"""Learning-rate schedules of the paper's first figure and of its experiments, for any budget.

============= ==========================================================================================================
constant      the learning rate does not change
manual        of Zagoruyko and Komodakis (2016) for wide residual networks: times 0.2 at 30, 60 and 80 % of the budget,
              which is after 60, 120 and 160 of 200 epochs; on SVHN, times 0.1 at 50 and 75 %, after 80 and 120 of 160
piecewise     of Huang et al. (2017) for densely connected networks: times 0.1 at 50 and 75 % of the budget
geometric     of Szegedy et al. (2015): times 0.94 after every second epoch
cosine        warm restarts of Loshchilov and Hutter (2017): four cycles of cosine annealing to zero, each twice as
              long as the one before; the first takes a fifteenth of the budget, and the last ends with it. The
              learning rate changes after each batch
one-cosine    a single cosine from the learning rate to zero
warmup        rises from zero over the first 5 % of the budget, then stays constant
warmup-cosine the same rise, then a single cosine to zero
plateau       of the paper's experiment on SNLI: divided by 5 after each epoch without a new best validation accuracy,
              or validation loss if there is no accuracy
============= ==========================================================================================================

All schedules work with every optimizer. In BORAT, a new learning rate takes effect at the next bundle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer, lr_scheduler

from borat._checks import check_count
from borat.lab.config import RunConfig

COSINE_CYCLES = 1 + 2 + 4 + 8
"""Sum of the lengths of the cycles, in units of the first."""
WARMUP = 0.05
"""Fraction of the budget during which the learning rate rises."""


class Schedule:
    """PyTorch scheduler that is stepped after each batch or each epoch, depending on its type.

    Args:
        scheduler: the scheduler, or None for a constant learning rate.
        budget: number of batches in all epochs.
    """

    def __init__(self, scheduler: lr_scheduler.LRScheduler | None, budget: int) -> None:
        self.scheduler, self.budget = scheduler, budget
        self.batches_done = 0

    def after_batch(self) -> None:
        """Call this after each step of the optimizer."""
        self.batches_done += 1
        if isinstance(self.scheduler, lr_scheduler.CosineAnnealingWarmRestarts) and self.batches_done < self.budget:
            self.scheduler.step(COSINE_CYCLES * self.batches_done / self.budget)
        elif isinstance(self.scheduler, lr_scheduler.LambdaLR) and self.batches_done < self.budget:
            self.scheduler.step()

    def after_epoch(self, score: float) -> None:
        """Call this after each epoch and its evaluation, with a score for which higher is better."""
        if isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(score)
        elif isinstance(self.scheduler, lr_scheduler.MultiStepLR | lr_scheduler.StepLR):
            self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        scheduler = {} if self.scheduler is None else self.scheduler.state_dict()
        return {"batches_done": self.batches_done, "scheduler": scheduler}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state; the learning rate itself is in the optimizer's state."""
        self.batches_done = state["batches_done"]
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])


def make_schedule(optimizer: Optimizer, config: RunConfig, batches: int) -> Schedule:
    """Return the schedule of a run with ``batches`` batches per epoch."""
    check_count("batches", batches)
    budget = config.epochs * batches
    scheduler: lr_scheduler.LRScheduler | None = None
    match config.schedule:
        case "manual" if not config.data.startswith("svhn"):
            scheduler = lr_scheduler.MultiStepLR(optimizer, _milestones(config, 0.3, 0.6, 0.8), 0.2)
        case "manual" | "piecewise":
            scheduler = lr_scheduler.MultiStepLR(optimizer, _milestones(config, 0.5, 0.75), 0.1)
        case "geometric":
            scheduler = lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.94)
        case "cosine":
            scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=1, T_mult=2)
        case "one-cosine" | "warmup" | "warmup-cosine":
            warmup = math.ceil(WARMUP * budget) if "warmup" in config.schedule else 0
            end = budget if "cosine" in config.schedule else None
            scheduler = lr_scheduler.LambdaLR(optimizer, _factor(warmup, end))
        case "plateau":
            scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, "max", factor=0.2, patience=0, threshold=0.0)
    return Schedule(scheduler, budget)


def _milestones(config: RunConfig, *shares: float) -> list[int]:
    """Return the epochs after which these fractions of the budget are spent, at least 1."""
    return [max(1, round(share * config.epochs)) for share in shares]


def _factor(warmup: int, end: int | None) -> Callable[[int], float]:
    """Return the function from batch to factor: a rise over ``warmup`` batches, then a cosine to zero at ``end``."""

    def factor(batch: int) -> float:
        if batch < warmup:
            return (batch + 1) / (warmup + 1)
        return 1.0 if end is None else 0.5 * (1.0 + math.cos(math.pi * (batch - warmup) / (end - warmup)))

    return factor
