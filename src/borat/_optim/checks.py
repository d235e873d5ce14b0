"""Checks of learning rates, which may be tensors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from borat._checks import is_number


def is_uncapped(lr: Any) -> bool:
    """Return True if ``lr`` is infinite, which tensors must not be."""
    return not isinstance(lr, Tensor) and math.isinf(lr)


def check_lr(lr: Any, bundle_size: int) -> None:
    """Raise an error unless ``lr`` is a number of at least 0; it may be infinite for a bundle of two."""
    if isinstance(lr, Tensor) and (lr.numel() != 1 or lr.is_complex()):
        found = f"a tensor of {lr.dtype} and shape {tuple(lr.shape)}"
        raise ValueError(f"lr must be a real number or a real tensor with one element, got {found}")
    if isinstance(lr, Tensor) and (lr.device.type != "cpu" or torch.compiler.is_compiling()):
        return  # reading the value would sync the device or break the compiled graph
    if not is_number(float(lr) if isinstance(lr, Tensor) else lr) or lr < 0.0:
        raise ValueError(f"lr must be a number of at least 0, got {lr!r}")
    if isinstance(lr, Tensor) and math.isinf(lr):
        raise ValueError(f"lr must be finite if it is a tensor, got {lr!r}")
    if math.isinf(lr) and bundle_size != 2:
        raise ValueError(f"lr must be finite unless bundle_size is 2, got {lr!r} with bundle_size={bundle_size}")


def check_finite_lr(lr: Any) -> None:
    """Raise an error unless ``lr`` is a finite number of at least 0."""
    check_lr(lr, 2)
    if is_uncapped(lr):
        raise ValueError(f"lr must be finite, got {lr!r}")
