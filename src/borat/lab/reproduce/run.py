"""Training runs of an experiment, and the choice of the best on validation.

All configurations of a method are trained with the first seed. The one with the best ``select_on`` after its last epoch
is chosen and trained with the further seeds. The result is its ``metric`` after the last epoch, as a mean over the
seeds; the authors' code tests the weights of the best epoch instead. Runs that diverged are never chosen. A scoreboard
also trains the configuration at each method's default learning rate with all seeds. In a grid, all configurations are
trained with all seeds, and means are compared.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from borat.lab.config import RunConfig
from borat.lab.files import pick
from borat.lab.metrics import METRICS, best, lower_is_better
from borat.lab.reproduce.page import StudyResult, duration
from borat.lab.reproduce.spec import Means
from borat.lab.robustness import as_accuracy, best_accuracy, is_usable
from borat.lab.store.records import as_table, read_runs
from borat.lab.store.run import Metrics, Run

if TYPE_CHECKING:
    import pandas as pd

    from borat.lab.reproduce.training import Cell, TrainingSpec, TrainingStudy


@dataclass(frozen=True, eq=False)
class CellResult:
    """Runs of a cell, as tables of :func:`borat.lab.read_runs` with four more columns.

    These are ``value``, the measurement that the table shows; ``score``, the one to choose by; ``works``, true if the
    run finished and has both; and ``error``, the traceback of a failed run. The index holds the digests of the
    configurations.
    """

    cell: Cell
    runs: pd.DataFrame
    """All configurations, in order; in a grid with each seed."""
    chosen: pd.DataFrame
    """The best configuration with each seed; empty if none worked."""
    defaults: pd.DataFrame
    """In a scoreboard, the default configuration with each seed; empty elsewhere."""

    @property
    def config(self) -> RunConfig | None:
        """The chosen configuration with the first seed."""
        return next((c for c in self.cell.configs if c.digest in self.chosen.index), None)

    @cached_property
    def settings(self) -> pd.DataFrame:
        """Means over the seeds, one row for each setting: a configuration without its seed."""
        return mean_over_seeds(self.runs, self.cell.configs)

    @property
    def values(self) -> pd.Series:
        return self.chosen.value[self.chosen.works]

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def std(self) -> float | None:
        return float(self.values.std()) if len(self.values) > 1 else None

    @property
    def status(self) -> str:
        """Finished if there is a result, else failed or diverged."""
        if len(self.values):
            return "finished"
        return "failed" if (self.runs.status == "failed").any() else "diverged"


@dataclass(frozen=True)
class Result(StudyResult):
    """The training runs of an experiment at one scale."""

    study: TrainingStudy
    cells: tuple[CellResult, ...]
    seconds: float = 0.0
    """Duration of the command; runs that were done before cost nothing."""
    classes: Mapping[str, int] = field(default_factory=dict)
    """Number of classes in each column."""
    found: int = 0
    """Number of runs that were already in the folder, complete or not."""

    @property
    def spec(self) -> TrainingSpec:
        return self.study.spec

    def cell(self, method: str, column: str) -> CellResult | None:
        return next((c for c in self.cells if (c.cell.method, c.cell.column) == (method, column)), None)

    def in_column(self, column: str) -> list[CellResult]:
        return [cell for cell in self.cells if cell.cell.column == column]

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(result.cell.method for result in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(result.cell.column for result in self.cells))

    @property
    def runs(self) -> pd.DataFrame:
        """Every run once."""
        import pandas as pd  # slow to import, and not needed to list experiments

        tables = [table for cell in self.cells for table in (cell.runs, cell.chosen, cell.defaults)]
        every = pd.concat([table for table in tables if len(table)])
        return every[~every.index.duplicated()]

    def usable(self, cell: CellResult) -> pd.Series:
        """Return which settings of a cell are usable: near the best of all methods in the column."""
        lower = lower_is_better(self.spec.metric_in(cell.cell.column))

        def accuracies(settings: pd.DataFrame) -> pd.Series:
            values = settings.value.where(settings.works)
            return values.map(as_accuracy) if lower else values

        top = best_accuracy(x for rival in self.in_column(cell.cell.column) for x in accuracies(rival.settings))
        return accuracies(cell.settings).map(lambda accuracy: is_usable(accuracy, top))

    def timing(self) -> str:
        found = f", which found {self.found} of them begun or done" if self.found else ""
        training = duration(float(self.runs.seconds.sum()))
        return f"{len(self.runs)} runs, {training} of training in all, {duration(self.seconds)} for the command{found}"

    def failures(self) -> list[str]:
        failed = self.runs[self.runs.status == "failed"].itertuples()
        return [f"{run.method}, lr {run.lr:g}: {run.error.strip().splitlines()[-1]}" for run in failed]


def mean_with_lost(runs: pd.DataFrame, metric: str) -> float:
    """Return the mean over all runs; one that diverged or failed has an accuracy of 0, or an infinite loss."""
    worst = math.inf if lower_is_better(metric) else 0.0
    return float(runs.value.where(runs.works, worst).mean())


# Training


def run_study(study: TrainingStudy, folder: Path, means: Means) -> Result:
    """Train each configuration in ``folder/<digest>``, unless it is done there."""
    import pandas as pd

    from borat.lab.sweeps.sweep import run_configs  # imports PyTorch, which reading a file does not need

    start, cells = time.perf_counter(), study.plan()
    data_dir = means.get("data_dir")
    classes = load_all_data(cells, data_dir)
    earlier = {path.name for path in folder.iterdir()} if folder.is_dir() else set()

    def train(configs: Iterable[RunConfig]) -> pd.DataFrame:
        unique = list(dict.fromkeys(configs))
        outcomes = run_configs(unique, folder, data_dir=data_dir, engine=means.get("engine"), watch=means.get("watch"))
        return read_results(folder, unique, [outcome.error for outcome in outcomes])

    runs = train(config for cell in cells for config in cell.configs)
    if repeated := _repeated(study, cells, runs):
        runs = pd.concat([runs, train(repeated)])
    results = []
    for cell in cells:
        chosen, defaults = (_with_seeds(study, c) for c in (choose(study.spec, cell, runs), cell.defaults))
        results.append(CellResult(cell, *(_rows(study.spec, cell, runs, c) for c in (cell.configs, chosen, defaults))))
    return Result(study, tuple(results), time.perf_counter() - start, classes, len(earlier.intersection(runs.index)))


def missing_runs(study: TrainingStudy, folder: Path) -> list[RunConfig]:
    """Return the configurations still to train. Further seeds follow once all others are done."""
    cells = study.plan()
    configs = list(dict.fromkeys(config for cell in cells for config in cell.configs))
    missing = [config for config in configs if not _is_done(folder, config)]
    if missing:
        return missing
    return [config for config in _repeated(study, cells, read_results(folder, configs)) if not _is_done(folder, config)]


def _repeated(study: TrainingStudy, cells: Sequence[Cell], runs: pd.DataFrame) -> list[RunConfig]:
    """Return the chosen and the default configurations with the further seeds."""
    wanted = (config for cell in cells for config in (*choose(study.spec, cell, runs), *cell.defaults))
    return [config for config in dict.fromkeys(_with_seeds(study, wanted)) if config.digest not in runs.index]


def _with_seeds(study: TrainingStudy, configs: Iterable[RunConfig]) -> list[RunConfig]:
    return [config.replace(seed=seed) for config in configs for seed in (config.seed, *study.further_seeds)]


def _is_done(folder: Path, config: RunConfig) -> bool:
    return Run(folder / config.digest).metrics.is_done


def load_all_data(cells: Sequence[Cell], data_dir: Path | None) -> dict[str, int]:
    """Load each data set once and return the number of classes in each column.

    Missing data raise before anything is trained, and decoded images are in the cache for the runs.
    """
    from borat.lab import data

    keys = ("data", "train_split", "glove", "image_size", "image_column", "label_column", "window")
    sets = {cell.column: tuple(getattr(c, key) for key in keys) for cell in cells for c in cell.configs}
    classes = {}
    for name, *options in dict.fromkeys(sets.values()):
        task = data.load(name, data_dir=data_dir, **dict(zip(keys[1:], options, strict=True)))
        classes[name, *options] = task.description.num_classes
    return {column: classes[key] for column, key in sets.items()}


# Results


def read_results(folder: Path, configs: Sequence[RunConfig], errors: Sequence[str] | None = None) -> pd.DataFrame:
    """Return the measurements of runs; ``errors`` has the tracebacks of those that failed."""
    import pandas as pd

    tracebacks = dict(zip((config.digest for config in configs), errors or [""] * len(configs), strict=True))
    kept = read_runs(folder, [name for name, error in tracebacks.items() if not error])
    failed = as_table((config.digest, config, Metrics("failed")) for config in configs if tracebacks[config.digest])
    runs = pd.concat([table for table in (kept, failed) if len(table)])
    return runs.loc[list(tracebacks)].assign(error=list(tracebacks.values()))


def with_scores(runs: pd.DataFrame, metric: str, select_on: str) -> pd.DataFrame:
    """Return the table with the columns ``value``, ``score`` and ``works``."""
    for name in (metric, select_on):
        if name not in runs and not (runs.status == "failed").all():
            pick("measurement", name, [known for known in METRICS if known in runs])
    value, score = (runs.get(name, math.nan) for name in (metric, select_on))
    runs = runs.assign(value=value, score=score)
    return runs.assign(works=(runs.status == "finished") & runs.value.notna() & runs.score.notna())


def _rows(spec: TrainingSpec, cell: Cell, runs: pd.DataFrame, configs: Sequence[RunConfig]) -> pd.DataFrame:
    """Return these runs with the metrics of the cell's column."""
    rows = runs.loc[[config.digest for config in configs]]
    return with_scores(rows, spec.metric_in(cell.column), spec.select_on_in(cell.column))


def mean_over_seeds(runs: pd.DataFrame, configs: Sequence[RunConfig]) -> pd.DataFrame:
    """Return one row for each setting: means of the measurements, and other columns from its first run.

    A setting works if all of its seeds do; otherwise its status is that of the first seed that did not finish.
    """
    settings = [_setting(config) for config in configs]
    seeds = runs.groupby(settings, sort=False)
    numbers = [name for name in (*METRICS, "value", "score") if name in runs]
    means = {name: seeds[name].agg(lambda values: values.mean(skipna=False)) for name in numbers}
    status = seeds.status.agg(lambda found: next((each for each in found if each != "finished"), "finished"))
    first = seeds.nth(0).set_axis(list(dict.fromkeys(settings)))
    return first.assign(**means, status=status, works=seeds.works.all())


def _setting(config: RunConfig) -> str:
    """Return a name that configurations share if they differ only in their seed."""
    return config.replace(seed=0).digest


def choose(spec: TrainingSpec, cell: Cell, runs: pd.DataFrame) -> list[RunConfig]:
    """Return the best configuration, if any works; in a grid with each seed."""
    settings = mean_over_seeds(_rows(spec, cell, runs, cell.configs), cell.configs)
    chosen = best(settings.index[settings.works], settings.score.get, spec.select_on_in(cell.column))
    return [config for config in cell.configs if _setting(config) == chosen]
