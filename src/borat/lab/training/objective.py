"""Objectives: the loss of a batch, other measures, and their sums over an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from lightning.fabric import Fabric
from torch import Tensor
from torch.nn import functional

from borat.lab.baselines import make_loss
from borat.lab.config import RunConfig
from borat.lab.data import Description
from borat.lab.training.processes import sum_over_processes

LARGEST_EXPONENT = 700.0
"""Approximately the largest number whose exponential is finite."""
SUMS = ("loss", "examples", "correct", "answers", "among_five")


@dataclass
class Tally:
    """Sums over batches; the tally of the current epoch is part of the checkpoint."""

    loss: float = 0.0
    examples: float = 0
    """Number of examples, or of characters, over which the loss is a sum."""
    correct: float = 0
    answers: float = 0
    among_five: float = 0
    """Number of answers with the true class among the top five, if counted."""
    seconds: float = 0.0
    step_sizes: float = 0.0
    steps: int = 0
    kinds: dict[str, int] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def over_processes(self, fabric: Fabric) -> Tally:
        """Return the same tally with its sums taken over all processes."""
        totals: Any = zip(SUMS, sum_over_processes(fabric, *(getattr(self, name) for name in SUMS)), strict=True)
        return replace(self, **dict(totals))

    def means(self) -> dict[str, float]:
        loss = self.loss / self.examples if self.examples else math.nan
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, LARGEST_EXPONENT)),
            "accuracy": self.correct / max(self.answers, 1),
            "top5_accuracy": self.among_five / max(self.answers, 1),
        }


@dataclass(frozen=True)
class Objective:
    """A loss with a minimum of zero, and the measures that are recorded with it."""

    loss: Callable[[Tensor, Tensor], Tensor]
    measures: tuple[str, ...] = ("loss", "accuracy")

    def measure(self, scores: Tensor, labels: Tensor, loss: float) -> Tally:
        """Return the tally of a batch."""
        count, among_five = len(labels), 0
        if "top5_accuracy" in self.measures:
            first = scores.topk(min(5, scores.shape[1]), dim=1).indices
            among_five = int((first == labels[:, None]).sum())
        return Tally(loss * count, count, int((scores.argmax(1) == labels).sum()), count, among_five)


class BitsObjective(Objective):
    """Prediction of sequences of bits; labels of -1 are ignored."""

    def measure(self, scores: Tensor, labels: Tensor, loss: float) -> Tally:
        scored = labels >= 0
        correct = ((scores > 0) == labels.bool()) & scored
        return Tally(loss * len(labels), len(labels), int(correct.sum()), int(scored.sum()))


class CharactersObjective(Objective):
    """Prediction of the next character, measured by its probability and not by accuracy."""

    def measure(self, scores: Tensor, labels: Tensor, loss: float) -> Tally:
        count = int((labels >= 0).sum())
        return Tally(loss * count, count)


def character_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the negative log-likelihood of the characters, in nats per character."""
    return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def bits_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the negative log-likelihood of a sequence's bits, in nats, averaged over the batch."""
    scored = (labels >= 0).to(scores.dtype)
    losses = functional.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="none")
    return (losses * scored).sum() / len(labels)


def make_objective(config: RunConfig, description: Description) -> Objective:
    """Return the objective of a run on data of this description."""
    if config.loss != "ce" and (description.sequences or description.alphabet):
        raise ValueError(f"loss must be ce for {description.name}, which has no classes, got {config.loss!r}")
    if description.sequences:
        return BitsObjective(bits_loss)
    if description.alphabet:
        return CharactersObjective(character_loss, ("loss", "perplexity"))
    if config.loss == "top5":
        return Objective(make_loss(config), (*Objective.measures, "top5_accuracy"))
    return Objective(make_loss(config))
