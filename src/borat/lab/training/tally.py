"""Sums over the batches of an epoch, and the position of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from lightning.fabric import Fabric

from borat.lab.training.objective import Count
from borat.lab.training.processes import sum_over_processes

LARGEST_EXPONENT = 700.0
"""Of what a computer can hold."""


@dataclass
class Tally:
    """Sums over the batches of an epoch, part of the checkpoint."""

    _COUNTS: ClassVar = ("examples", "correct", "answers", "among_five")
    loss: float = 0.0
    examples: int = 0
    correct: int = 0
    answers: int = 0
    among_five: int = 0
    seconds: float = 0.0
    step_sizes: float = 0.0
    steps: int = 0
    kinds: dict[str, int] = field(default_factory=dict)

    def add(self, loss: float, examples: int, count: Count) -> None:
        self.loss += loss * examples
        self.examples += examples
        self.correct += count.correct
        self.answers += count.answers
        self.among_five += count.among_five

    def over_processes(self, fabric: Fabric) -> Tally:
        """The same with the sums of all processes."""
        loss, *counts = sum_over_processes(fabric, self.loss, *(getattr(self, name) for name in self._COUNTS))
        whole: dict[str, Any] = {name: int(count) for name, count in zip(self._COUNTS, counts, strict=True)}
        return replace(self, loss=loss, **whole)

    def means(self) -> dict[str, float]:
        loss = self.loss / self.examples if self.examples else math.nan
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, LARGEST_EXPONENT)),
            "accuracy": self.correct / max(self.answers, 1),
            "top5_accuracy": self.among_five / max(self.answers, 1),
        }


@dataclass
class Position:
    """Position of a run: the next batch to train on."""

    epoch: int = 0
    batch: int = 0
