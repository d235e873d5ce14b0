"""Progress of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress

from borat.lab.store.lock import lock_of
from borat.lab.sweeps.jobs import Job, Outcome


class JobProgress:
    """Progress of one point of the grid."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.outcome = self._stored()
        """Result, once the job has ended."""
        self.is_new = self.outcome is None
        """False if the job had ended before this sweep."""
        self._locked_before = self._locked_at()

    @property
    def status(self) -> str:
        """One of waiting, running, finished, diverged, failed."""
        if self.outcome is not None:
            return self.outcome.status
        return "waiting" if self._locked_at() == self._locked_before else "running"

    @property
    def done(self) -> int:
        """Number of parts that are done, such as epochs."""
        if self.outcome is not None:
            return self.job.size
        with suppress(ValueError):
            return self.job.progress()
        return 0

    def end(self, error: str | None) -> None:
        self.outcome = self._stored()
        if self.outcome is None:
            error = error or f"no result in {self.job.folder}: the folder must be on storage that all machines share"
            self.outcome = Outcome(self.job.settings, self.job.folder, "failed", error=error)

    def _stored(self) -> Outcome | None:
        """Return the stored result; None for a damaged one, which the next attempt reports."""
        with suppress(ValueError):
            return self.job.outcome()
        return None

    def _locked_at(self) -> int | None:
        """Return the time at which a process, on any machine, last locked the run's folder."""
        lock = lock_of(self.job.folder)
        return lock.stat().st_mtime_ns if lock.is_file() else None


class SweepProgress:
    """Progress of a sweep."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.points = [JobProgress(job) for job in jobs]

    @property
    def done(self) -> int:
        return sum(point.done for point in self.points)

    @property
    def size(self) -> int:
        return sum(point.job.size for point in self.points)

    def __str__(self) -> str:
        counts = Counter(point.status for point in self.points)
        ended = sum(point.outcome is not None for point in self.points)
        return (
            f"{ended} of {len(self.points)} done, {counts['failed']} failed, "
            f"{counts['running']} running, {counts['waiting']} waiting"
        )


Watch = Callable[[SweepProgress], None]
