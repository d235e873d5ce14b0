"""The interface of engines, which run jobs in other processes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, Protocol

HEARTBEAT = 0.5
"""Seconds between two looks at the jobs."""

GRACE = 30.0
"""Seconds that a job which is asked to stop has to save."""

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
