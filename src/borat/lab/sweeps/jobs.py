"""Jobs of a sweep and their progress; a job trains a configuration or calls a function."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import pickle
import sys
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from borat.lab.config import Execution, RunConfig
from borat.lab.files import write_json
from borat.lab.signals import Interrupted
from borat.lab.store.run import Run, exclusive, lock_of

PATIENCE = 60.0
"""Seconds to wait for a run's folder: more than the worker of another sweep needs to save and end."""


@dataclass(frozen=True)
class Point:
    """A point of the grid."""

    arguments: dict[str, Any]
    folder: Path

    @cached_property
    def config(self) -> RunConfig:
        """Configuration of a training run."""
        return RunConfig(**self.arguments)


@dataclass(frozen=True)
class Outcome(Point):
    """Result of one point of the grid."""

    status: str
    """One of finished, diverged, failed."""
    result: dict[str, float] = field(default_factory=dict)
    error: str = ""
    """Traceback of a run that failed."""

    @property
    def reason(self) -> str:
        """Last line of the traceback."""
        return self.error.strip().splitlines()[-1] if self.error else ""


@dataclass(frozen=True)
class Job(Point, ABC):
    """Work for another process, which stores its result in a folder."""

    modules: ClassVar[tuple[str, ...]] = ()
    """Modules that the work imports."""

    @property
    def size(self) -> int:
        """Number of parts of the work, such as epochs."""
        return 1

    @abstractmethod
    def work(self) -> None:
        """Run the job, or continue it."""

    @abstractmethod
    def outcome(self) -> Outcome | None:
        """Return the stored result, or None if the job is not done."""

    def progress(self) -> int:
        """Return the number of parts that are done."""
        return 0

    def __call__(self) -> str | None:
        """Run the job in a worker process, and return the traceback if it fails."""
        try:
            with exclusive(self.folder, PATIENCE), _output_to(self.folder.parent / "logs" / f"{self.folder.name}.txt"):
                if self.outcome() is None:  # another sweep may have done it in the meantime
                    self.work()
        except Interrupted:
            raise
        except (Exception, SystemExit):
            return traceback.format_exc()
        return None


@dataclass(frozen=True)
class TrainingJob(Job):
    """One run of the lab."""

    modules: ClassVar[tuple[str, ...]] = ("borat.lab.training.train",)

    data_dir: Path | None = None
    execution: Execution | None = None

    @property
    def size(self) -> int:
        return self.config.epochs

    def work(self) -> None:
        from borat.lab.training.train import train

        train(self.config, self.folder, data_dir=self.data_dir, execution=self.execution)

    def outcome(self) -> Outcome | None:
        metrics = Run(self.folder).metrics
        if not metrics.is_done:
            return None
        return Outcome(self.arguments, self.folder, metrics.status, metrics.result)

    def progress(self) -> int:
        return len(Run(self.folder).metrics.epochs)


@dataclass(frozen=True)
class FunctionJob(Job):
    """One call of a user's function, pickled by cloudpickle."""

    function: bytes

    def work(self) -> None:
        function = pickle.loads(self.function)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "arguments.json", self.arguments)
        folder = {"folder": self.folder} if "folder" in inspect.signature(function).parameters else {}
        write_json(self.folder / "result.json", _numbers(function(**self.arguments, **folder)))

    def outcome(self) -> Outcome | None:
        path = self.folder / "result.json"
        if not path.is_file():
            return None
        try:
            result = _numbers(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{path} cannot be read: delete it to compute it again ({error})") from error
        return Outcome(self.arguments, self.folder, "finished", result)


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
            self.outcome = Outcome(self.job.arguments, self.job.folder, "failed", error=error)

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
"""Called with the progress of a sweep at every heartbeat."""


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Redirect the output of this process, and the traceback of an error, from the terminal to a file.

    The file is written as the output arrives, not atomically: it must show why a process died.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        terminal = [os.dup(stream) for stream in (1, 2)]
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)  # the file descriptors, since libraries may keep the old sys.stderr
        try:
            yield
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for stream, before in zip((1, 2), terminal, strict=True):
                os.dup2(before, stream)
                os.close(before)
    if log.stat().st_size == 0:
        log.unlink()


def digest(arguments: Mapping[str, Any], version: str = "") -> str:
    """Return a short name for arguments and a version of a function, the same on every machine."""
    for key, value in arguments.items():
        try:
            json.dumps(value)
        except TypeError as error:
            raise ValueError(f"{key} must be a number, a string or a list of them, got {value!r}") from error
    text = json.dumps(arguments, sort_keys=True) + version
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _numbers(values: Any) -> dict[str, float]:
    if not isinstance(values, Mapping):
        raise ValueError(f"the function must return a mapping of names to numbers, got {values!r}")
    numbers = {}
    for name, value in values.items():
        try:
            numbers[str(name)] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"the function must return a number for {name!r}, got {value!r}") from error
    return numbers
