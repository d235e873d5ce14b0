"""Engines: processes on this machine, or a Ray cluster."""

from __future__ import annotations

from typing import Any

from borat.lab.files import pick
from borat.lab.sweeps.engines.base import Engine

OPTIONS = {"local": ("workers",), "ray": ("address", "cpus_per_run", "gpus_per_run")}
"""Options of each engine."""


def make_engine(engine: str | None = None, **options: Any) -> Engine:
    """Create an engine by its name, "local" by default; options that are None keep their defaults."""
    name = pick("engine", engine or "local", OPTIONS)
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in OPTIONS[name]:
            other = next(engine for engine, known in OPTIONS.items() if option in known)
            raise ValueError(f"{option} is an option of the engine {other!r}, not of {name!r}")
    if name == "ray":
        from borat.lab.sweeps.engines.ray import RayEngine

        return RayEngine(**given)
    from borat.lab.sweeps.engines.local import LocalEngine

    return LocalEngine(**given)
