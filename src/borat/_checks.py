"""Argument checks: each error names the argument, its value and the allowed values.

``isinstance`` gets tuples of types: compiled steps run these checks, and PyTorch 2.6 cannot compile unions.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, TypeGuard


def is_number(x: Any) -> TypeGuard[float]:
    """Return True if ``x`` is a real number, and neither NaN nor a boolean."""
    return isinstance(x, (float, Real)) and not isinstance(x, bool) and not math.isnan(x)


def check_positive(name: str, value: Any) -> None:
    if not is_number(value) or not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be a positive, finite number, got {value!r}")


def check_nonnegative(name: str, value: Any) -> None:
    if not is_number(value) or not 0.0 <= value < math.inf:
        raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")


def check_fraction(name: str, value: Any) -> None:
    if not is_number(value) or not 0.0 < value <= 1.0:
        raise ValueError(f"{name} must be a number in (0, 1], got {value!r}")


def check_count(name: str, value: Any, *, minimum: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{name} must be an integer of at least {minimum}, got {value!r}")


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def check_betas(betas: Any) -> None:
    """Raise an error unless the betas are in (0, 1) and [0, 1); a first beta of 0 would lose the average."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2 or not all(is_number(beta) for beta in betas):
        raise ValueError(f"betas must be two numbers, got {betas!r}")
    if not 0.0 < betas[0] < 1.0 or not 0.0 <= betas[1] < 1.0:
        raise ValueError(f"betas must be in (0, 1) and [0, 1), got {betas!r}")


def check_momentum(momentum: Any) -> None:
    if not is_number(momentum) or not 0.0 <= momentum < 1.0:
        raise ValueError(f"momentum must be a number in [0, 1), got {momentum!r}")
