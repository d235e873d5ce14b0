"""Interface of the engines, which run jobs in other processes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, Protocol

HEARTBEAT = 0.5
"""Maximum number of seconds between two yields of an engine."""
GRACE = 30.0
"""Seconds in which a job must save after it was asked to stop."""

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
