"""Integrations with trainers: one thin module for each trainer that needs one.

Each module imports its trainer; this package does not. They share one rule: the model is at the point where gradients
are measured (FreeBORAT's y, the trial point of BORAT's bundle) only while a batch is processed. At all other times it
is at the result (FreeBORAT's average x, BORAT's centre).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from borat import FreeBORAT
from borat._optim.base import LossOptimizer

__all__ = ["unwrap"]


def unwrap(optimizer: Any) -> LossOptimizer:
    """Return the optimizer inside the wrappers of Lightning, Fabric or accelerate.

    The wrappers forward ``step``. Call the methods that only borat's optimizers have, such as ``observe``, ``eval`` and
    ``train``, on the optimizer itself: some wrappers imitate its class and would run these methods on themselves.

    Example:
        >>> import torch
        >>> from borat import BORAT
        >>> optimizer = BORAT(torch.nn.Linear(2, 1).parameters())
        >>> unwrap(optimizer) is optimizer
        True
    """
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, LossOptimizer):
        raise TypeError(f"the optimizer must be a FreeBORAT, BORAT or ALIG, got a {type(optimizer).__name__}")
    return optimizer


def warn_about_clipping(argument: str, value: float | None, optimizers: Sequence[Any]) -> None:
    """Warn that clipped gradients with unclipped losses make the steps of BORAT and ALI-G too long."""
    if value and not all(isinstance(optimizer, FreeBORAT) for optimizer in optimizers):
        warnings.warn(
            f"{argument}={value:g} clips the gradients, which makes the steps of BORAT and ALIG too long: they are "
            "computed from the loss and its exact gradient. Turn clipping off; the steps are bounded without it.",
            stacklevel=4,
        )
