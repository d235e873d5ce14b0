"""Jobs of a sweep, one for each point of its grid: train a configuration, or call a function."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from borat.lab.config import Execution, RunConfig
from borat.lab.files import write_json
from borat.lab.store.lock import exclusive
from borat.lab.store.run import Run
from borat.lab.sweeps.engines.base import Stopped

PATIENCE = 60.0
"""Seconds to wait for a run's folder: longer than another sweep's worker takes to save and end."""


@dataclass(frozen=True)
class Outcome:
    """Result of one point of the grid."""

    settings: dict[str, Any]
    folder: Path
    status: str
    """One of finished, diverged, failed."""
    result: dict[str, float] = field(default_factory=dict)
    error: str = ""
    """The traceback of a run that failed."""

    @property
    def config(self) -> RunConfig:
        """The settings of a training run."""
        return RunConfig(**self.settings)


class Job(Protocol):
    """Work that can be sent to another process and leaves its result in a folder."""

    modules: ClassVar[tuple[str, ...]]
    """Modules that it imports first."""

    @property
    def folder(self) -> Path: ...

    @property
    def settings(self) -> dict[str, Any]: ...

    @property
    def size(self) -> int:
        """The parts of the work, for example epochs."""

    def __call__(self) -> None:
        """Do the work, or go on with it."""

    def outcome(self) -> Outcome | None:
        """Return the stored result, or None if the work is not done."""

    def progress(self) -> tuple[int, Mapping[str, Any]]:
        """The parts done so far, and what was measured after them."""


@dataclass(frozen=True)
class TrainingJob:
    """One run of the lab."""

    modules: ClassVar[tuple[str, ...]] = ("borat.lab.training.train",)

    config: RunConfig
    folder: Path
    data_dir: Path | None = None
    execution: Execution | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return self.config.as_dict()

    @property
    def size(self) -> int:
        return self.config.epochs

    def __call__(self) -> None:
        from borat.lab.training.train import Interrupted, train

        try:
            train(self.config, self.folder, data_dir=self.data_dir, execution=self.execution)
        except Interrupted as interruption:
            raise Stopped(str(interruption)) from interruption

    def outcome(self) -> Outcome | None:
        metrics = Run(self.folder).metrics
        if not metrics.is_done:
            return None
        return Outcome(self.settings, self.folder, metrics.status, metrics.result)

    def progress(self) -> tuple[int, Mapping[str, Any]]:
        epochs = Run(self.folder).metrics.epochs
        return len(epochs), epochs[-1] if epochs else {}


@dataclass(frozen=True)
class FunctionJob:
    """One call of a user's function."""

    modules: ClassVar[tuple[str, ...]] = ()

    function: bytes
    settings: dict[str, Any]
    folder: Path
    size: int = 1

    def __call__(self) -> None:
        function = pickle.loads(self.function)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "settings.json", self.settings)
        own = {"folder": self.folder} if "folder" in inspect.signature(function).parameters else {}
        write_json(self.folder / "result.json", _numbers(function(**self.settings, **own)))

    def outcome(self) -> Outcome | None:
        path = self.folder / "result.json"
        if not path.is_file():
            return None
        try:
            result = _numbers(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{path} cannot be read: delete it to compute it anew ({error})") from error
        return Outcome(self.settings, self.folder, "finished", result)

    def progress(self) -> tuple[int, Mapping[str, Any]]:
        return 0, {}


def pack(function: Callable[..., Any]) -> bytes:
    """A function as another process can load it, be it from a script, a notebook or a prompt."""
    import cloudpickle  # type: ignore[import-untyped]

    packed: bytes = cloudpickle.dumps(function)
    return packed


@dataclass(frozen=True)
class Attempt:
    """A job as a worker process does it: the call returns the traceback if it fails."""

    job: Job

    @property
    def modules(self) -> tuple[str, ...]:
        return self.job.modules

    def __call__(self) -> str | None:
        folder = self.job.folder
        try:
            with exclusive(folder, PATIENCE), _output_kept(folder.parent / "logs" / f"{folder.name}.txt"):
                if self.job.outcome() is None:  # another sweep may have done it while we waited
                    self.job()
        except Stopped:
            raise
        except (Exception, SystemExit):
            return traceback.format_exc()
        return None


@contextmanager
def _output_kept(log: Path) -> Iterator[None]:
    """Send what this process prints, and its last traceback, to a file instead of into the sweep's table.

    The file grows as it is printed, so that it tells why a process died: it is not written whole as all others are.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        terminal = [os.dup(stream) for stream in (1, 2)]
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)  # below Python, so that libraries which keep sys.stderr are heard, too
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


def digest(settings: Mapping[str, Any], version: str = "") -> str:
    """A short name for settings, of this version of a function: the same on every machine."""
    for key, value in settings.items():
        try:
            json.dumps(value)
        except TypeError as error:
            raise ValueError(f"{key} must be a number, text, or a list of them, got {value!r}") from error
    text = json.dumps(settings, sort_keys=True) + version
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _numbers(values: Any) -> dict[str, float]:
    if not isinstance(values, Mapping):
        raise ValueError(f"the function must return a mapping of names to numbers, got {values!r}")
    return {str(name): _number(str(name), value) for name, value in values.items()}


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"the function must return a number for {name!r}, got {value!r}") from error
