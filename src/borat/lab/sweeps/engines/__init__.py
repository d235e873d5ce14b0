"""Engines: a sweep's jobs in processes on this machine, or on a Ray cluster."""

from __future__ import annotations

from typing import Any

from borat.lab.files import pick
from borat.lab.sweeps.engines.base import Engine

ENGINES = ("local", "ray")


def make_engine(
    name: str = "local",
    *,
    workers: int | None = None,
    threads: int | None = None,
    address: str | None = None,
    cpus_per_run: float | None = None,
    gpus_per_run: float | None = None,
) -> Engine:
    """Make an engine by its name, with the options that it has."""
    options: dict[str, dict[str, Any]] = {
        "local": {"workers": workers, "threads": threads},
        "ray": {"address": address, "cpus_per_run": cpus_per_run, "gpus_per_run": gpus_per_run},
    }
    pick("engine", name, ENGINES)
    given = {engine: {k: v for k, v in values.items() if v is not None} for engine, values in options.items()}
    for other in set(ENGINES) - {name}:
        for option in given[other]:
            raise ValueError(f"{option} is for the engine {other!r}, not for {name!r}")
    if name == "ray":
        from borat.lab.sweeps.engines.ray import RayEngine

        return RayEngine(**given["ray"])
    from borat.lab.sweeps.engines.local import LocalEngine

    return LocalEngine(**given["local"])
