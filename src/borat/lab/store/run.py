"""One directory for each run, with a lock; files are written atomically, so that a killed process damages none.

config.json       the resolved configuration
environment.json  versions, machine, seed, data files
metrics.json      one record for each epoch, and the result
last.pt, best.pt  checkpoints
"""

from __future__ import annotations

import json
import math
import os
import platform
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, ClassVar

from filelock import FileLock, Timeout
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from borat.lab.config import RunConfig
from borat.lab.files import read_mapping, write_atomically, write_json
from borat.lab.strict import explain, one_of

PACKAGES = ("borat", "torch", "numpy", "lightning", "datasets")
STATUSES = ("finished", "diverged", "failed", "running")
DONE = ("finished", "diverged")
"""Statuses of runs that are not trained again; a failed run continues from its last checkpoint."""
LOST = ("diverged", "failed")
"""Statuses of runs that ended without a result."""
RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
"""Environment variables for the rank of a process; unset or 0 in the first process."""
REMEDIES = {
    "config.json": "move its folder away to start the run anew",
    "environment.json": "delete it to have it written again",
    "metrics.json": "delete it to go on from the checkpoint",
    "last.pt": "delete it to start the run anew",
    "best.pt": "delete it; the run does not need it",
}
"""Remedies for damaged files."""


def _check_kinds(epoch: dict[str, Any]) -> dict[str, Any]:
    kinds = epoch.get("kinds") or {}
    if not isinstance(kinds, dict) or not all(isinstance(count, int) for count in kinds.values()):
        raise ValueError(f"kinds must hold names and counts, got {kinds!r}")
    return epoch


@dataclass
class Metrics:
    """Measurements of a run so far. Those from a file are validated."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")
    status: Annotated[str, one_of(*STATUSES)] = "running"
    epochs: list[Annotated[dict[str, Any], AfterValidator(_check_kinds)]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """True if training has ended."""
        return self.status in DONE


class Run:
    """The directory of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: RunConfig, **environment: Any) -> Run:
        """Create a directory, or reuse one that was created with the same configuration."""
        run = cls(path)
        environment = json.loads(json.dumps({**describe_environment(), **environment}))
        if run.exists():
            changed = [key for key, value in config.identity.items() if value != run.config.identity[key]]
            if changed:
                raise ValueError(f"{path} holds a run with another configuration: {', '.join(changed)} differ")
            for leftover in path.glob(".*.*"):  # unfinished files of a killed process
                if leftover.is_file():
                    leftover.unlink(missing_ok=True)
        elif path.exists() and any(not leftover.name.startswith(".") for leftover in path.iterdir()):
            raise ValueError(f"{path} is not empty and holds no run")
        else:
            path.mkdir(parents=True, exist_ok=True)
            write_json(path / "config.json", config.as_dict())
        if not (path / "environment.json").is_file():  # also after a kill between the two files
            write_json(path / "environment.json", environment)
        run.check_data(environment.get("data", {}))
        return run

    def check_data(self, now: dict[str, Any]) -> None:
        """Raise a ValueError unless these are the data that the run was started with; their location may differ."""
        then = self.environment.get("data", {})
        changed = [key for key in now if key not in ("sources", "notes") and then.get(key, now[key]) != now[key]]
        if changed:
            was, is_now = ({key: data[key] for key in (*changed, "sources") if key in data} for data in (then, now))
            raise ValueError(
                f"{self.path} holds a run on other data: it used {was}, got {is_now}; choose another folder with out"
            )

    def exists(self) -> bool:
        return (self.path / "config.json").is_file()

    @property
    def config(self) -> RunConfig:
        values = self._read_json("config.json")
        config = RunConfig(**values)
        missing = [key for key in ("data", "model", "optimizer") if key not in values]
        if missing:  # other programs also have files of this name
            raise ValueError(f"{self.path / 'config.json'} does not describe a run: it has no {', '.join(missing)}")
        return config

    @property
    def environment(self) -> dict[str, Any]:
        return self._read_json("environment.json")

    def has_metrics(self) -> bool:
        return (self.path / "metrics.json").is_file()

    @property
    def metrics(self) -> Metrics:
        if not self.has_metrics():
            return Metrics()
        try:
            metrics = TypeAdapter(Metrics).validate_python(self._read_json("metrics.json"))
        except ValidationError as error:
            reason, path = explain(error, asdict(Metrics())), self.path / "metrics.json"
            raise ValueError(f"{reason}; {path} is damaged: {REMEDIES['metrics.json']}") from error
        metrics.epochs = [_with_nan(record) for record in metrics.epochs]
        metrics.result = _with_nan(metrics.result)
        return metrics

    def write_metrics(self, metrics: Metrics) -> None:
        """Write the metrics, with null for numbers that are not finite, which JSON does not have."""
        write_json(self.path / "metrics.json", to_jsonable_python(asdict(metrics), inf_nan_mode="null"))

    def save(self, name: str, state: dict[str, Any]) -> None:
        """Write a checkpoint."""
        import torch  # here and below: readers of metrics need not wait for it

        def write(path: Path) -> None:
            try:
                with path.open("wb") as file:
                    torch.save(state, file)
            except RuntimeError as error:  # torch hides the error of the system, such as a full disk
                raise error.__context__ if isinstance(error.__context__, OSError) else error from None

        write_atomically(self.path / name, write)

    def load(self, name: str) -> dict[str, Any] | None:
        """Read a checkpoint; return None if there is none yet."""
        path = self.path / name
        if not path.is_file():
            return None
        import torch

        try:
            state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        except Exception as error:  # a damaged file may raise nearly any
            raise ValueError(f"{path} cannot be read: {REMEDIES[name]} ({error})") from error
        return state

    def _read_json(self, name: str) -> dict[str, Any]:
        try:
            return read_mapping(self.path / name)
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.path / name} cannot be read: {REMEDIES[name]} ({error})") from error


def _with_nan(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with NaN for null: a measurement that is null was not finite."""
    measured = ("_loss", "_accuracy", "_perplexity")
    return {key: math.nan if value is None and key.endswith(measured) else value for key, value in record.items()}


def describe_environment() -> dict[str, Any]:
    """Return the versions and the machine of this process."""
    import torch

    versions = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "python": sys.version.split()[0],
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "versions": versions,
    }


class InUseError(OSError):
    """Another process is writing to the folder."""


@contextmanager
def exclusive(folder: Path, patience: float) -> Iterator[None]:
    """Lock a folder for this process, which may lock it repeatedly; the system releases it when the process dies.

    If another process holds the lock, wait for at most ``patience`` seconds. Of the processes that train one model
    together, the first holds it for all. The lock file is beside the folder, which may not exist yet, and names its
    holder.
    """
    if any(os.environ.get(rank, "0") != "0" for rank in RANKS):
        yield
        return
    path = lock_of(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, is_singleton=True)
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        raise InUseError(f"{folder} is in use by {path.read_text(encoding='utf-8')}: wait for it or stop it") from None
    try:
        # written in place: renaming would replace the locked file
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        lock.release()


def lock_of(folder: Path) -> Path:
    """Return the lock file, which is written whenever the folder is locked."""
    folder = folder.absolute()
    return folder.parent / ".locks" / folder.name
