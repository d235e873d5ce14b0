"""borat inside trainers: one thin module for each trainer that needs one.

The modules import their trainer, this package does not. What they share is one rule: the model is where gradients are
measured (FreeBORAT's y, the trial point of BORAT's bundle) only while a batch is processed, and at the result
(FreeBORAT's average x, BORAT's centre) whenever something else may look at it.
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

    They pass ``step`` on to it. All that is its own, such as ``observe``, ``eval`` and ``train``, must be called on the
    optimizer itself: some wrappers imitate its class and would run these methods on themselves.

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


def warn_of_clipping(argument: str, value: float | None, optimizers: Sequence[Any]) -> None:
    """Warn that clipped gradients with unclipped losses make the steps of BORAT and ALI-G too long."""
    if value and not all(isinstance(optimizer, FreeBORAT) for optimizer in optimizers):
        warnings.warn(
            f"{argument}={value:g} clips the gradients, which makes the steps of BORAT and ALIG wrong: they need the"
            " gradients of the loss that they see. Their steps are bounded already, so switch the clipping off.",
            stacklevel=4,
        )
