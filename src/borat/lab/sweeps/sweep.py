"""Sweeps: finished runs are skipped, interrupted ones continue, failures do not stop the rest."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

from borat.lab.config import Execution, RunConfig
from borat.lab.files import check_writable
from borat.lab.sweeps.engines import make_engine
from borat.lab.sweeps.engines.base import Engine
from borat.lab.sweeps.grid import Grid, combinations
from borat.lab.sweeps.jobs import FunctionJob, Job, Outcome, SweepProgress, TrainingJob, Watch, digest
from borat.lab.training.model import check_names


def run_configs(
    configs: Sequence[RunConfig],
    folder: Path,
    *,
    data_dir: Path | None = None,
    execution: Execution | None = None,
    engine: Engine | None = None,
    watch: Watch | None = None,
) -> list[Outcome]:
    """Train each configuration in ``folder/<digest>``, and return the outcomes in the same order.

    Runs that have finished or diverged are not trained again; others continue from their last checkpoint.
    """
    if execution is not None and execution.devices > 1:
        raise ValueError(f"devices must be 1 in a sweep, got {execution.devices}")
    for config in configs:
        check_names(config)
    folder, data_dir = folder.absolute(), data_dir and data_dir.absolute()
    jobs = [TrainingJob(config.as_dict(), folder / config.digest, data_dir, execution) for config in configs]
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
        train_fn: called with keyword arguments; returns numbers by name, such as ``{"accuracy": 0.9}``. A
            parameter named ``folder`` receives a folder for checkpoints, the same one when the sweep is repeated.
        grid: a list of values for each keyword, or a list of mappings from keywords to values.
        folder: where results are stored, each in a folder named after its arguments and the function. A stored result
            is not computed again, unless the function has changed, or a plain value or a function of the same module
            that it uses. Calls that failed are repeated.
        workers: number of processes; by default the number of cores.
        engine: where to run instead, for example a ``RayEngine``.
        watch: called twice a second with the sweep's ``SweepProgress``, for example ``print``.

    In a script, call it below ``if __name__ == "__main__":``, since worker processes import the script.
    """
    if engine is not None and workers is not None:
        raise ValueError(f"workers must not be given together with engine, got {workers}")
    points = list(combinations(grid)) if isinstance(grid, Mapping) else [dict(point) for point in grid]
    if not points or not any(points):
        raise ValueError(f"grid must have at least one key with one value, got {grid!r}")
    for point in points:
        _check_arguments(train_fn, point)
    import cloudpickle  # type: ignore[import-untyped]

    function, version, home = cloudpickle.dumps(train_fn), fingerprint(train_fn), Path(folder).absolute()
    jobs = [FunctionJob(point, home / digest(point, version), function) for point in points]
    return _run(jobs, engine or make_engine(workers=workers), watch)


def _run(jobs: Sequence[Job], engine: Engine, watch: Watch | None) -> list[Outcome]:
    progress = SweepProgress({job.folder: job for job in jobs}.values())
    missing = [point for point in progress.points if point.outcome is None]
    if watch is not None:
        watch(progress)
    if missing:
        check_writable(missing[0].job.folder.parent)
        with closing(engine.run([point.job for point in missing])) as heartbeats:
            for ended in heartbeats:
                for index, error in ended:
                    missing[index].end(error)
                if watch is not None:
                    watch(progress)
    outcomes = {point.job.folder: point.outcome for point in progress.points}
    return [outcome for job in jobs if (outcome := outcomes[job.folder]) is not None]


def _check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raise a ValueError for arguments that the function does not take, before every run fails on them."""
    if "folder" in arguments:
        raise ValueError(f"grid must not have the key 'folder', which the sweep sets, got {arguments['folder']!r}")
    signature = inspect.signature(function)
    folder = {"folder": None} if "folder" in signature.parameters else {}
    try:
        signature.bind(**arguments, **folder)
    except TypeError as error:
        raise ValueError(f"grid does not fit the function, which takes {signature}: {error}") from None


def fingerprint(function: Callable[..., Any]) -> str:
    """Return a string that identifies a function in its current version.

    It covers the name, the code, the defaults, and the values that the function uses from around it, including
    functions of the same module. It ignores the code of libraries, and the contents of their objects. A pickle would
    refer to a function of a module by its name alone, and differ between processes if the code contains a set.
    """
    inner = function
    while isinstance(inner, partial):
        inner = inner.func
    return _describe(function, getattr(inner, "__module__", None), {})


def _describe(value: Any, module: str | None, seen: dict[int, Any]) -> str:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if not isinstance(value, tuple | frozenset | CodeType):  # which cannot contain themselves
        if id(value) in seen:
            return "again"
        seen[id(value)] = value  # kept alive, so that its id is not reused
    thing = value if hasattr(value, "__qualname__") else type(value)
    parts = ", ".join(_describe(part, module, seen) for part in _parts(value, module))
    return f"{thing.__module__}.{thing.__qualname__}({parts})"


def _parts(value: Any, module: str | None) -> list[Any]:
    """Return the parts of a value."""
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)  # its order differs between processes
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in item]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, CodeType):
        return [value.co_code, value.co_names, value.co_consts]
    if isinstance(value, FunctionType) and value.__module__ == module:
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        around = [value.__globals__.get(name) for name in sorted(_names(value.__code__))]
        return [value.__code__, value.__defaults__, value.__kwdefaults__, cells, around]
    if type(value).__module__ == module:  # an object of the user's, which may be the function
        return [type(value).__dict__.get("__call__"), getattr(value, "__dict__", {})]
    return []


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(c) for c in code.co_consts if isinstance(c, CodeType)))
