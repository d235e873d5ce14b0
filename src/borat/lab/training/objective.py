"""Objectives: the loss of a batch, and the count of right answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from borat.lab.baselines import make_loss
from borat.lab.config import RunConfig
from borat.lab.data import Description


class Count(NamedTuple):
    """Right answers beside all answers."""

    correct: int
    answers: int
    among_five: int = 0
    """Right answers among the first five, if that is counted."""


@dataclass(frozen=True)
class Objective:
    """A loss whose smallest possible value is zero, and what else is measured."""

    loss: nn.Module
    measures: tuple[str, ...] = ("loss", "accuracy")

    def count(self, scores: Tensor, labels: Tensor) -> Count:
        return Count(int((scores.argmax(1) == labels).sum()), len(labels))

    def weight(self, labels: Tensor) -> int:
        """Return the weight of a batch in a mean over batches."""
        return len(labels)


class TopFiveObjective(Objective):
    """A loss that asks for no more than the right class among the first five."""

    def count(self, scores: Tensor, labels: Tensor) -> Count:
        first = scores.topk(min(5, scores.shape[1]), dim=1).indices
        return super().count(scores, labels)._replace(among_five=int((first == labels[:, None]).sum()))


class BitsObjective(Objective):
    """Answers that are sequences of bits; a label of -1 is not scored."""

    def count(self, scores: Tensor, labels: Tensor) -> Count:
        scored = labels >= 0
        return Count(int((((scores > 0) == labels.bool()) & scored).sum()), int(scored.sum()))


class CharactersObjective(Objective):
    """The next character of each: judged by its probability, not by whether it is the first guess."""

    def count(self, scores: Tensor, labels: Tensor) -> Count:
        return Count(0, 0)

    def weight(self, labels: Tensor) -> int:
        return int((labels >= 0).sum())


class NextCharacterLoss(nn.Module):
    """The negative log-likelihood of the characters, in nats per character."""

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


class SequenceLoss(nn.Module):
    """The negative log-likelihood of a sequence's bits, in nats, averaged over the batch."""

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        scored = (labels >= 0).to(scores.dtype)
        losses = functional.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="none")
        return (losses * scored).sum() / len(labels)


def make_objective(config: RunConfig, description: Description) -> Objective:
    if description.sequences:
        if config.loss != "ce":
            raise ValueError(f"loss must be ce for {description.name}, whose labels are bits, got {config.loss!r}")
        return BitsObjective(SequenceLoss())
    if description.alphabet:
        if config.loss != "ce":
            raise ValueError(f"loss must be ce for {description.name}, in nats per character, got {config.loss!r}")
        return CharactersObjective(NextCharacterLoss(), ("loss", "perplexity"))
    if config.loss == "top5":
        return TopFiveObjective(make_loss(config), (*Objective.measures, "top5_accuracy"))
    return Objective(make_loss(config))
