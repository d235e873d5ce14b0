"""From an experiment to its numbers: runs, and the choice on validation.

How the best is chosen: all configurations of a method are trained with the first seed. The one with the best
``select_on`` after its last epoch is chosen, and trained with the further seeds; its ``metric`` after the last epoch,
as a mean over the seeds, is the result. Runs that diverged are never chosen. The authors' code tests the weights of
the best epoch instead of the last.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from borat.lab import data
from borat.lab.config import RunConfig
from borat.lab.files import pick
from borat.lab.reproduce.plan import Cell, plan, seeds_of
from borat.lab.reproduce.spec import Spec, lower_is_better
from borat.lab.store.run import Run
from borat.lab.sweeps.engines.base import Engine
from borat.lab.sweeps.jobs import Outcome
from borat.lab.sweeps.progress import Watch
from borat.lab.sweeps.sweep import run_configs


@dataclass(frozen=True)
class Trial:
    """One run; numbers are in the paper's unit, and NaN where the run has none."""

    config: RunConfig
    status: str
    """One of finished, diverged, failed."""
    score: float
    """What the choice looks at."""
    value: float
    """What the table shows."""
    seconds: float = 0.0
    """Of training."""
    epochs: tuple[Mapping[str, Any], ...] = ()
    """The records of all epochs."""
    error: str = ""

    @property
    def works(self) -> bool:
        return self.status == "finished" and math.isfinite(self.value) and math.isfinite(self.score)

    def curve(self, metric: str) -> list[float]:
        """A measurement after each epoch, where it is made then."""
        return [in_unit(metric, epoch[metric]) for epoch in self.epochs if metric in epoch]


@dataclass(frozen=True)
class CellResult:
    """What a cell came to."""

    cell: Cell
    trials: tuple[Trial, ...]
    """All configurations."""
    chosen: tuple[Trial, ...] = ()
    """The best configuration with each seed; empty if none worked."""

    @property
    def values(self) -> list[float]:
        return [trial.value for trial in self.chosen if trial.works]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def std(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def status(self) -> str:
        """Finished if there is a number, else what became of the runs."""
        if self.values:
            return "finished"
        return "failed" if any(trial.status == "failed" for trial in self.trials) else "diverged"


@dataclass(frozen=True)
class Result:
    """An experiment at one scale."""

    spec: Spec
    scale: str
    cells: tuple[CellResult, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    """From the call to its end; runs that were done before cost nothing."""

    def cell(self, method: str, column: str) -> CellResult | None:
        found = (c for c in self.cells if (c.cell.method, c.cell.column) == (method, column))
        return next(found, None)

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(result.cell.method for result in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(result.cell.column for result in self.cells))

    @property
    def runs(self) -> list[Trial]:
        """Every run once."""
        trials = (trial for cell in self.cells for trial in (*cell.trials, *cell.chosen))
        return list({trial.config: trial for trial in trials}.values())


def reproduce(
    spec: Spec,
    scale: str,
    folder: Path,
    *,
    methods: Sequence[str] = (),
    columns: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    data_dir: Path | None = None,
    engine: Engine | None = None,
    watch: Watch | None = None,
) -> Result:
    """Train what an experiment needs, each run in ``folder/<digest>``; what is done is not done again."""
    start = time.perf_counter()
    cells = plan(spec, scale, methods=methods, columns=columns, changes=changes)
    check_data(cells, data_dir)

    def run(configs: Sequence[RunConfig]) -> dict[RunConfig, Trial]:
        outcomes = run_configs(list(dict.fromkeys(configs)), folder, data_dir=data_dir, engine=engine, watch=watch)
        return {outcome.config: read_trial(outcome, spec.metric, spec.select_on) for outcome in outcomes}

    others = seeds_of(spec, scale, changes)[1:]
    trials = run([config for cell in cells for config in cell.configs])
    wanted = {cell: choose(spec, cell, trials) for cell in cells}
    trials |= run([config.replace(seed=seed) for configs in wanted.values() for config in configs for seed in others])
    results = [
        CellResult(
            cell,
            tuple(trials[config] for config in cell.configs),
            tuple(trials[config.replace(seed=seed)] for config in wanted[cell] for seed in (config.seed, *others)),
        )
        for cell in cells
    ]
    return Result(spec, scale, tuple(results), dict(changes or {}), time.perf_counter() - start)


def missing_runs(spec: Spec, scale: str, folder: Path, **chosen: Any) -> list[RunConfig]:
    """What is still to be trained; the further seeds are known when all runs with the first are done."""
    cells = plan(spec, scale, **chosen)
    configs = [config for cell in cells for config in cell.configs]
    if missing := [config for config in dict.fromkeys(configs) if not _is_done(folder, config)]:
        return missing
    trials = {config: read_run(config, folder / config.digest, spec.metric, spec.select_on) for config in configs}
    repeated = [config for cell in cells for config in choose(spec, cell, trials)]
    seeds = seeds_of(spec, scale, chosen.get("changes"))[1:]
    return [c for config in repeated for seed in seeds if not _is_done(folder, c := config.replace(seed=seed))]


def _is_done(folder: Path, config: RunConfig) -> bool:
    return Run(folder / config.digest).metrics.status != "running"


def check_data(cells: Sequence[Cell], data_dir: Path | None) -> None:
    """Load each data set once: what is missing is said before anything is trained, and decoded images are kept."""
    keys = ("data", "train_split", "glove")
    for name, train_split, glove in {tuple(getattr(c, k) for k in keys): None for cell in cells for c in cell.configs}:
        data.load(name, data_dir=data_dir, train_split=train_split, glove=glove)


def read_trial(outcome: Outcome, metric: str, select_on: str) -> Trial:
    if outcome.status == "failed":
        return Trial(outcome.config, "failed", math.nan, math.nan, error=outcome.error)
    return read_run(outcome.config, outcome.folder, metric, select_on)


def read_run(config: RunConfig, folder: Path, metric: str, select_on: str) -> Trial:
    """What a run measured, from its folder."""
    metrics = Run(folder).metrics
    last = {**metrics.epochs[-1], **metrics.result}
    for name in (metric, select_on):
        pick("measurement", name, last)
    return Trial(
        config,
        metrics.status,
        score=in_unit(select_on, last[select_on]),
        value=in_unit(metric, last[metric]),
        seconds=sum(epoch["seconds"] for epoch in metrics.epochs),
        epochs=tuple(metrics.epochs),
    )


def in_unit(metric: str, value: float) -> float:
    """Accuracies in percent, as in the paper."""
    return 100.0 * value if metric.endswith("_accuracy") else value


def choose(spec: Spec, cell: Cell, trials: Mapping[RunConfig, Trial]) -> list[RunConfig]:
    """The best configuration, if any works."""
    working = [trials[config] for config in cell.configs if trials[config].works]
    if not working:
        return []
    sign = -1.0 if lower_is_better(spec.select_on) else 1.0
    return [max(working, key=lambda trial: sign * trial.score).config]
