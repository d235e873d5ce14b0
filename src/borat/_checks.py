"""Argument checks: each error names the argument, its value and the allowed values.

``isinstance`` gets tuples of types: compiled steps run these checks, and PyTorch 2.6 cannot compile unions.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, TypeGuard

import torch
from torch import Tensor


def is_number(x: Any) -> TypeGuard[float]:
    """Return True if ``x`` is a real number, and neither NaN nor a boolean."""
    return isinstance(x, (float, Real)) and not isinstance(x, bool) and not math.isnan(x)


def check_positive(name: str, value: Any) -> None:
    if not is_number(value) or not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be a positive, finite number, got {value!r}")


def check_not_negative(name: str, value: Any) -> None:
    if not is_number(value) or not 0.0 <= value < math.inf:
        raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")


def check_share(name: str, value: Any) -> None:
    if not is_number(value) or not 0.0 < value <= 1.0:
        raise ValueError(f"{name} must be a number in (0, 1], got {value!r}")


def check_count(name: str, value: Any, *, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def is_uncapped(lr: Any) -> bool:
    """Return True if ``lr`` is infinite; tensors are always finite."""
    return not isinstance(lr, Tensor) and math.isinf(lr)


def check_lr(lr: Any, bundle_size: int) -> None:
    """Raise an error unless ``lr`` is a number of at least 0; it may be infinite for a bundle of two."""
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"lr must be a number or a tensor with one element, got a tensor of shape {tuple(lr.shape)}")
    if isinstance(lr, Tensor) and lr.is_complex():
        raise ValueError(f"lr must be a real number, got {lr!r}")
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


def check_betas(betas: Any) -> None:
    """Raise an error unless the betas are in (0, 1) and [0, 1); with a first beta of 0 the average is lost."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2 or not all(is_number(beta) for beta in betas):
        raise ValueError(f"betas must be two numbers, got {betas!r}")
    if not 0.0 < betas[0] < 1.0 or not 0.0 <= betas[1] < 1.0:
        raise ValueError(f"betas must be in (0, 1) and [0, 1), got {betas!r}")


def check_momentum(momentum: Any) -> None:
    if not is_number(momentum) or not 0.0 <= momentum < 1.0:
        raise ValueError(f"momentum must be a number in [0, 1), got {momentum!r}")
