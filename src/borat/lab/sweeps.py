"""Many runs: what is done is skipped, what was interrupted goes on, what fails does not stop the rest."""

from __future__ import annotations

import difflib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from borat.lab.config import RunConfig
from borat.lab.engines import Engine, make_engine
from borat.lab.execution import Execution
from borat.lab.grid import Grid, combinations
from borat.lab.jobs import Attempt, FunctionJob, Job, Outcome, TrainingJob, digest, fingerprint, pack
from borat.lab.locks import lock_of
from borat.lab.names import check_names


class Point:
    """One point of the grid while the sweep runs."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.outcome = job.outcome()
        self.done, self.accuracy = job.progress()
        self._was_missing = self.outcome is None
        if self.outcome is not None:
            self.done = job.size
        self.done_before = self.done
        self._taken_before = self._taken()

    @cached_property
    def config(self) -> RunConfig:
        """The settings of a training run."""
        return RunConfig.from_mapping(self.job.settings)

    @property
    def status(self) -> str:
        """One of waiting, running, finished, diverged, failed."""
        if self.outcome is not None:
            return self.outcome.status
        return "waiting" if self._taken() == self._taken_before else "running"

    @property
    def ended_now(self) -> bool:
        """Whether it came to its end in this sweep, rather than before."""
        return self.outcome is not None and self._was_missing

    def refresh(self) -> None:
        """Look at what the run has stored."""
        if self.outcome is None:
            self.done, self.accuracy = self.job.progress()

    def end(self, error: str | None) -> None:
        self.outcome = self.job.outcome()
        if self.outcome is None:
            error = error or f"no result in {self.job.folder}: the folder must be on storage that all machines share"
            self.outcome = Outcome(self.job.settings, self.job.folder, "failed", error=error)
        self.done = self.job.size

    def _taken(self) -> int | None:
        """When a process took the run's folder, wherever that process is."""
        lock = lock_of(self.job.folder)
        return lock.stat().st_mtime_ns if lock.is_file() else None


@dataclass
class Progress:
    """How far a sweep is."""

    points: list[Point]
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


Watch = Callable[[Progress], None]


def run_configs(
    configs: Sequence[RunConfig],
    folder: Path,
    *,
    data_dir: Path | None = None,
    execution: Execution | None = None,
    engine: Engine | None = None,
    watch: Watch | None = None,
) -> list[Outcome]:
    """Train each configuration in ``folder/<digest>``; what became of each, in the same order.

    Runs that are finished or have diverged are not trained again; others go on where they were.
    """
    if execution is not None and execution.devices > 1:
        raise ValueError(f"devices must be 1 in a sweep, which runs side by side, got {execution.devices}")
    for config in configs:
        check_names(config)
    folder, data_dir = folder.absolute(), data_dir and data_dir.absolute()
    jobs = [TrainingJob(config, folder / config.digest, data_dir, execution) for config in configs]
    return _run(jobs, engine or make_engine(), watch)


def sweep(
    train_fn: Callable[..., Mapping[str, float]],
    grid: Grid | Sequence[Mapping[str, Any]],
    *,
    folder: str | Path = "sweep",
    workers: int | None = None,
    engine: Engine | None = None,
    watch: Watch | None = None,
) -> list[Outcome]:
    """Call your own training function at each point of a grid, in worker processes.

    Args:
        train_fn: called with the settings as keywords; returns numbers by name, such as ``{"accuracy": 0.9}``. A
            parameter named ``folder`` receives a folder for its checkpoints, the same when the sweep is repeated.
        grid: a list of values for each keyword, or a list of settings.
        folder: where results are kept, each in a folder named by its settings and the function. Those that are there
            are not computed again, unless the function has changed, or a plain value or function of its module that
            it uses; calls that failed are.
        workers: processes; the number of cores without it.
        engine: where to run instead, for example a ``RayEngine``.
        watch: called twice a second with the sweep's ``Progress``; ``print`` will do.

    In a script, call it below ``if __name__ == "__main__":``, since worker processes import the script.
    """
    if engine is not None and workers is not None:
        raise ValueError("workers cannot be given together with engine, which has its own")
    points = list(combinations(grid)) if isinstance(grid, Mapping) else [dict(point) for point in grid]
    if not points or not any(points):
        raise ValueError("the grid must have at least one key with one value, got an empty one")
    for point in points:
        _check_arguments(train_fn, point)
    function, version = pack(train_fn), fingerprint(train_fn)
    home = Path(folder).absolute()
    jobs = [FunctionJob(function, point, home / digest(point, version)) for point in points]
    return _run(jobs, engine or make_engine(workers=workers), watch)


def _run(jobs: Sequence[Job], engine: Engine, watch: Watch | None) -> list[Outcome]:
    points = {job.folder: Point(job) for job in jobs}
    progress = Progress(list(points.values()))
    missing = [point for point in points.values() if point.outcome is None]
    if watch is not None:
        watch(progress)
    if missing:
        with closing(engine.run([Attempt(point.job) for point in missing])) as heartbeats:
            for ended in heartbeats:
                for index, error in ended:
                    missing[index].end(error)
                if watch is not None:
                    progress.refresh()
                    watch(progress)
    return [outcome for job in jobs if (outcome := points[job.folder].outcome) is not None]


def _check_arguments(function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """A wrong name is one mistake, not one failure for each run."""
    parameters = inspect.signature(function).parameters
    known = [name for name, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for key in settings:
        if key == "folder" or (key not in known and not takes_all):
            known = [name for name in known if name != "folder"]
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known)}"
            raise ValueError(f"the function has no parameter {key!r} for the grid; {hint}")
    needed = [name for name in known if parameters[name].default is inspect.Parameter.empty and name != "folder"]
    missing = [name for name in needed if name not in settings]
    if missing:
        raise ValueError(f"the grid has no values for {', '.join(missing)}, which the function needs")


def readable_time(seconds: float) -> str:
    """
    >>> readable_time(7), readable_time(190), readable_time(5000)
    ('7 s', '3 min', '1 h 23 min')
    """
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
