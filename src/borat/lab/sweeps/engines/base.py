"""What an engine is, and which there are."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, Protocol

from borat.lab.files import pick

HEARTBEAT = 0.5
"""Seconds between two looks at the jobs."""

GRACE = 30.0
"""Seconds that a job which is asked to stop has to save."""

ENGINES = ("local", "ray")

Call = Callable[[], str | None]
"""A job that can be sent to another process; returns the traceback of an error.

It may have ``modules``, the names of those that it imports, which an engine may then load once for all jobs.
"""


class Ended(NamedTuple):
    """A job that came to its end."""

    job: int
    error: str | None


class Stopped(Exception):  # noqa: N818 - it is no error
    """The process was asked to end in the middle of a job, and saved what it had."""


class Engine(Protocol):
    """Runs jobs in other processes, possibly on other machines."""

    def run(self, calls: Sequence[Call]) -> Generator[list[Ended]]:
        """Do all jobs and yield, at every heartbeat, those that ended since the last.

        A job whose process dies is started again. Closing the generator asks the running jobs to save and stop.
        """


def make_engine(
    name: str = "local",
    *,
    workers: int | None = None,
    threads: int | None = None,
    address: str | None = None,
    cpus_per_run: float | None = None,
    gpus_per_run: float | None = None,
    retries: int = 2,
) -> Engine:
    """An engine by its name, with the options that it has."""
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

        return RayEngine(**given["ray"], retries=retries)
    from borat.lab.sweeps.engines.local import LocalEngine

    return LocalEngine(**given["local"], retries=retries)
