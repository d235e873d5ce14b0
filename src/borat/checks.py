"""The one question that all argument checks ask."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, TypeGuard


def is_number(x: Any) -> TypeGuard[float]:
    """Whether ``x`` is a real number other than NaN; booleans are none."""
    return isinstance(x, Real) and not isinstance(x, bool) and not math.isnan(x)
