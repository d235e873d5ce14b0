"""FreeBORAT, BORAT and ALI-G: PyTorch optimizers for training without tuning learning rates."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from borat._numbers.solve_dual import DualSolution, solve_dual
    from borat._numbers.step_info import StepInfo
    from borat._optim.borat import ALIG, BORAT
    from borat._optim.free_borat import FreeBORAT

__all__ = ["ALIG", "BORAT", "DualSolution", "FreeBORAT", "StepInfo", "solve_dual"]
__version__ = "0.1.0"

_MODULES = {
    "ALIG": "_optim.borat",
    "BORAT": "_optim.borat",
    "DualSolution": "_numbers.solve_dual",
    "FreeBORAT": "_optim.free_borat",
    "StepInfo": "_numbers.step_info",
    "solve_dual": "_numbers.solve_dual",
}


def __getattr__(name: str) -> Any:
    """Import public names lazily: the command line should not wait for the import of PyTorch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
