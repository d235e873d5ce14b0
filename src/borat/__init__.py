"""BORAT: a stochastic bundle method for training neural networks without tuning learning rates."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from borat.alig import ALIG
    from borat.bundle import StepInfo
    from borat.dual import DualSolution, solve_dual
    from borat.free import FreeBORAT
    from borat.optimizer import BORAT

__all__ = ["ALIG", "BORAT", "DualSolution", "FreeBORAT", "StepInfo", "solve_dual"]
__version__ = "0.1.0"

_MODULES = {
    "ALIG": "alig",
    "BORAT": "optimizer",
    "DualSolution": "dual",
    "FreeBORAT": "free",
    "StepInfo": "bundle",
    "solve_dual": "dual",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is: the commands answer before PyTorch could be imported."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
