"""Progress of a sweep."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from borat.lab.config import RunConfig
from borat.lab.store.lock import lock_of
from borat.lab.sweeps.jobs import Job, Outcome


class JobProgress:
    """One point of the grid while the sweep runs."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.outcome = self._stored()
        self.done = 0
        self.measured: Mapping[str, Any] = {}
        with suppress(ValueError):
            self.done, self.measured = job.progress()
        self._was_missing = self.outcome is None
        if self.outcome is not None:
            self.done = job.size
        self.done_before = self.done
        self._taken_before = self._taken()

    @cached_property
    def config(self) -> RunConfig:
        """The settings of a training run."""
        return RunConfig(**self.job.settings)

    @property
    def status(self) -> str:
        """One of waiting, running, finished, diverged, failed."""
        if self.outcome is not None:
            return self.outcome.status
        return "waiting" if self._taken() == self._taken_before else "running"

    @property
    def ended_now(self) -> bool:
        """True if it ended during this sweep, not before."""
        return self.outcome is not None and self._was_missing

    def refresh(self) -> None:
        """Look at what the run has stored."""
        if self.outcome is None:
            with suppress(ValueError):
                self.done, self.measured = self.job.progress()

    def end(self, error: str | None) -> None:
        self.outcome = self._stored()
        if self.outcome is None:
            error = error or f"no result in {self.job.folder}: the folder must be on storage that all machines share"
            self.outcome = Outcome(self.job.settings, self.job.folder, "failed", error=error)
        self.done = self.job.size

    def _stored(self) -> Outcome | None:
        """Return the stored result; None for a damaged one, which the next attempt reports."""
        with suppress(ValueError):
            return self.job.outcome()
        return None

    def _taken(self) -> int | None:
        """When a process took the run's folder, wherever that process is."""
        lock = lock_of(self.job.folder)
        return lock.stat().st_mtime_ns if lock.is_file() else None


@dataclass
class SweepProgress:
    """Progress of a sweep."""

    points: list[JobProgress]
    started: float | None = None
    """When the first run was seen to have started."""

    def refresh(self) -> None:
        for point in self.points:
            point.refresh()
        if self.started is None and any(point.status == "running" or point.ended_now for point in self.points):
            self.started = time.monotonic()

    def count(self, *statuses: str) -> int:
        return sum(point.status in statuses for point in self.points)

    @property
    def ended(self) -> int:
        return self.count("finished", "diverged", "failed")

    @property
    def seconds_left(self) -> float | None:
        """At this sweep's pace so far, which is counted in epochs; None before the first."""
        done = sum(point.done - point.done_before for point in self.points)
        left = sum(point.job.size - point.done for point in self.points)
        if self.started is None or not done:
            return None if left else 0.0
        return (time.monotonic() - self.started) * left / done

    def __str__(self) -> str:
        text = f"{self.ended} of {len(self.points)} done, {self.count('failed')} failed, "
        text += f"{self.count('running')} running, {self.count('waiting')} waiting"
        return text if self.seconds_left is None else f"{text}, {readable_time(self.seconds_left)} left"


Watch = Callable[[SweepProgress], None]


def readable_time(seconds: float) -> str:
    """
    >>> readable_time(7), readable_time(190), readable_time(5000)
    ('7 s', '3 min', '1 h 23 min')
    """
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
