"""The losses of the paper by name."""

from __future__ import annotations

from torch import nn

from borat.lab.config import RunConfig
from borat.lab.files import pick
from borat.lab.methods import METHODS
from borat.losses import MultiClassHingeLoss, SmoothHingeLoss, TopKCrossEntropyLoss

LOSSES: dict[str, type[nn.Module]] = {
    "ce": nn.CrossEntropyLoss,
    "hinge": MultiClassHingeLoss,
    "smooth-hinge": SmoothHingeLoss,
    "top5": TopKCrossEntropyLoss,
}


def make_loss(config: RunConfig) -> nn.Module:
    """The loss of a run, averaged over the batch."""
    check_loss_suits(config)
    return LOSSES[config.loss]()


def check_loss_suits(config: RunConfig) -> None:
    """Raise a ValueError for an optimizer that is not there, or that cannot have this loss."""
    allowed = METHODS[pick("optimizer", config.optimizer, METHODS)].losses or tuple(LOSSES)
    if config.loss not in allowed:
        raise ValueError(f"loss must be {' or '.join(allowed)} for {config.optimizer}, got {config.loss!r}")
