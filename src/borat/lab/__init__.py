"""The lab: experiments with BORAT and with other optimizers. The core never imports it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from borat.lab.store.records import read_runs
    from borat.lab.sweeps.sweep import sweep

__all__ = ["read_runs", "sweep"]

_MODULES = {"read_runs": "borat.lab.store.records", "sweep": "borat.lab.sweeps.sweep"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:  # lazy: most of the lab does not need them
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
