"""The lab: experiments with BORAT and what people would use instead. The core never imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from borat.lab.sweeps.sweep import sweep

__all__ = ["sweep"]


def __getattr__(name: str) -> Any:
    if name == "sweep":  # here rather than above: most of the lab needs nothing that a sweep does
        from borat.lab.sweeps.sweep import sweep

        return sweep
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
