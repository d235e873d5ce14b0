"""The losses of the paper by name."""

from __future__ import annotations

from torch import nn

from borat.lab.config import RunConfig
from borat.losses import MultiClassHingeLoss, SmoothHingeLoss, TopKCrossEntropyLoss

LOSSES: dict[str, type[nn.Module]] = {
    "ce": nn.CrossEntropyLoss,
    "hinge": MultiClassHingeLoss,
    "smooth-hinge": SmoothHingeLoss,
    "top5": TopKCrossEntropyLoss,
}


def make_loss(config: RunConfig) -> nn.Module:
    """Return the loss of a run, averaged over the batch."""
    return LOSSES[config.loss]()
