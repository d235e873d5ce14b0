"""Many runs: what is done is skipped, what was interrupted goes on, what fails does not stop the rest."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from borat.lab.config import Execution, RunConfig
from borat.lab.files import check_writable, pick
from borat.lab.sweeps.engines import make_engine
from borat.lab.sweeps.engines.base import Engine
from borat.lab.sweeps.fingerprint import fingerprint
from borat.lab.sweeps.grid import Grid, combinations
from borat.lab.sweeps.jobs import Attempt, FunctionJob, Job, Outcome, TrainingJob, digest, pack
from borat.lab.sweeps.progress import JobProgress, SweepProgress, Watch
from borat.lab.training.checks import check_names


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
        watch: called twice a second with the sweep's ``SweepProgress``; ``print`` will do.

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
    points = {job.folder: JobProgress(job) for job in jobs}
    progress = SweepProgress(list(points.values()))
    missing = [point for point in points.values() if point.outcome is None]
    if watch is not None:
        watch(progress)
    if missing:
        check_writable(missing[0].job.folder.parent)
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
            pick("parameter of the function", key, [name for name in known if name != "folder"])
    needed = [name for name in known if parameters[name].default is inspect.Parameter.empty and name != "folder"]
    missing = [name for name in needed if name not in settings]
    if missing:
        raise ValueError(f"the grid has no values for {', '.join(missing)}, which the function needs")
