"""Interface of the engines, which run jobs in other processes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, Protocol

HEARTBEAT = 0.5
"""Longest time between two yields of an engine, in seconds."""
GRACE = 30.0
"""Time in which a job that is asked to stop must save, in seconds."""

Call = Callable[[], str | None]
"""A job that can be sent to another process; returns the traceback of an error, if any.

It may have an attribute ``modules``: names of modules to import once for all jobs.
"""


class Ended(NamedTuple):
    """A job that ended: its index, and the traceback of its error, if any."""

    job: int
    error: str | None


class Engine(Protocol):
    """Runs jobs in other processes, possibly on other machines."""

    def run(self, calls: Sequence[Call]) -> Generator[list[Ended]]:
        """Run all jobs; yield at every heartbeat those that ended since the last one.

        A job whose process dies is started again. Closing the generator asks the running jobs to save and stop.
        """
