"""Training runs of an experiment, and the choice of the best on validation.

All configurations of a method are trained with the first seed. The one with the best ``select_on`` after its last epoch
is chosen, and trained with the further seeds; its ``metric`` after the last epoch, as a mean over the seeds, is the
result. Runs that diverged are never chosen. A scoreboard also trains the configuration with the learning rate that the
method's authors advise with all seeds. The authors' code tests the weights of the best epoch instead of the last. In a
grid, all configurations are trained with all seeds, and means are compared.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pandas as pd

from borat.lab import data
from borat.lab.config import RunConfig
from borat.lab.files import pick
from borat.lab.metrics import METRICS
from borat.lab.reproduce.columns import ColumnsSpec
from borat.lab.reproduce.spec import Cell, Means, Study, StudyResult
from borat.lab.store.records import as_table, best_setting, read_runs
from borat.lab.store.run import Metrics, Run
from borat.lab.sweeps.sweep import run_configs


@dataclass(frozen=True, eq=False)
class CellResult:
    """Runs of a cell, as tables of :func:`borat.lab.read_runs` with four columns more.

    These are ``value``, what the table shows; ``score``, what the choice looks at; ``works``, whether the run finished
    and has both; and ``error``, the traceback of a run whose status is failed. Runs are called by their digests.
    """

    cell: Cell
    runs: pd.DataFrame
    """All configurations, in order; in a grid with each seed."""
    chosen: pd.DataFrame
    """The best configuration with each seed; empty if none worked."""
    defaults: pd.DataFrame = field(default_factory=pd.DataFrame)
    """In a scoreboard, the advised configuration with each seed."""

    @property
    def config(self) -> RunConfig | None:
        """The chosen configuration with the first seed."""
        return next((c for c in self.cell.configs if c.digest in self.chosen.index), None)

    @property
    def settings(self) -> pd.DataFrame:
        """One row for each configuration but for its seed: the means of what was measured; it works if all seeds do."""
        return _over_seeds(self.runs, self.cell.configs)

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
        """Finished if there is a number, else what became of the runs."""
        if len(self.values):
            return "finished"
        return "failed" if (self.runs.status == "failed").any() else "diverged"


@dataclass(frozen=True)
class Result(StudyResult):
    """The training runs of an experiment at one scale."""

    cells: tuple[CellResult, ...]
    seconds: float = 0.0
    """From the call to its end; runs that were done before cost nothing."""
    classes: Mapping[str, int] = field(default_factory=dict)
    """Of the data of each column."""
    found: int = 0
    """Number of runs that were in the folder already, done or begun."""

    @property
    def spec(self) -> ColumnsSpec:
        return cast(ColumnsSpec, self.study.spec)

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
    def runs(self) -> pd.DataFrame:
        """Every run once."""
        tables = [table for cell in self.cells for table in (cell.runs, cell.chosen, cell.defaults)]
        every = pd.concat([table for table in tables if len(table)])
        return every[~every.index.duplicated()]


def reproduce(spec: ColumnsSpec, study: Study, folder: Path, means: Means) -> Result:
    """Train what an experiment needs, each run in ``folder/<digest>``; what is done is not done again."""
    start = time.perf_counter()
    others, cells = spec.further_seeds(study), spec.plan(study)
    classes = load_all_data(cells, means.data_dir)
    earlier = {path.name for path in folder.iterdir()} if folder.is_dir() else set()

    def run(configs: Sequence[RunConfig]) -> pd.DataFrame:
        unique = list(dict.fromkeys(configs))
        outcomes = run_configs(unique, folder, data_dir=means.data_dir, engine=means.engine, watch=means.watch)
        return read_results(folder, unique, [outcome.error for outcome in outcomes])

    runs = run([config for cell in cells for config in cell.configs])
    wanted = {cell: choose(spec, cell, runs) for cell in cells}
    repeated = [c.replace(seed=s) for cell in cells for c in (*wanted[cell], *_defaults(cell)) for s in others]
    if repeated:
        runs = pd.concat([runs, run(repeated)])
    results = []
    for cell in cells:
        chosen, defaults = (
            [config.replace(seed=seed) for config in configs for seed in (config.seed, *others)]
            for configs in (wanted[cell], _defaults(cell))
        )
        tables = (_rows(spec, cell, runs, configs) for configs in (cell.configs, chosen, defaults))
        results.append(CellResult(cell, *tables))
    return Result(study, tuple(results), time.perf_counter() - start, classes, len(earlier.intersection(runs.index)))


def _defaults(cell: Cell) -> list[RunConfig]:
    return [] if cell.default is None else [cell.default]


def read_results(folder: Path, configs: Sequence[RunConfig], errors: Sequence[str] | None = None) -> pd.DataFrame:
    """Return the measurements of runs; ``errors`` has the tracebacks of those that failed."""
    told = dict(zip((config.digest for config in configs), errors or [""] * len(configs), strict=True))
    kept = read_runs(folder, [name for name, error in told.items() if not error])
    failed = as_table((config.digest, config, Metrics("failed")) for config in configs if told[config.digest])
    runs = pd.concat([table for table in (kept, failed) if len(table)])
    return runs.loc[list(told)].assign(error=list(told.values()))


def with_scores(runs: pd.DataFrame, metric: str, select_on: str) -> pd.DataFrame:
    """Return the table with the columns ``value``, ``score`` and ``works``."""
    for name in (metric, select_on):
        if name not in runs and not (runs.status == "failed").all():
            pick("measurement", name, [known for known in METRICS if known in runs])
    value, score = (runs.get(name, math.nan) for name in (metric, select_on))
    runs = runs.assign(value=value, score=score)
    return runs.assign(works=(runs.status == "finished") & runs.value.notna() & runs.score.notna())


def _rows(spec: ColumnsSpec, cell: Cell, runs: pd.DataFrame, configs: Sequence[RunConfig]) -> pd.DataFrame:
    """These runs, as the cell's column looks at them."""
    rows = runs.loc[[config.digest for config in configs]]
    return with_scores(rows, spec.metric_in(cell.column), spec.select_on_in(cell.column))


def _setting(config: RunConfig) -> str:
    """Return a name that runs share if they differ in nothing but their seed."""
    return config.replace(seed=0).digest


def _over_seeds(runs: pd.DataFrame, configs: Sequence[RunConfig]) -> pd.DataFrame:
    """One row for each setting, called by it, with means; other columns are those of its first run."""
    settings = [_setting(config) for config in configs]
    seeds = runs.groupby(settings, sort=False)
    numbers = [name for name in (*METRICS, "value", "score") if name in runs]
    means = {name: seeds[name].agg(lambda values: values.mean(skipna=False)) for name in numbers}
    status = seeds.status.agg(lambda found: next((each for each in found if each != "finished"), "finished"))
    first = seeds.nth(0).set_axis(list(dict.fromkeys(settings)))
    return first.assign(**means, status=status, works=seeds.works.all())


def missing_runs(spec: ColumnsSpec, study: Study, folder: Path) -> list[RunConfig]:
    """Return the runs still to train. Those with further seeds are known once all others are done."""
    cells = spec.plan(study)
    configs = list(dict.fromkeys(config for cell in cells for config in cell.configs))
    if missing := [config for config in configs if not _is_done(folder, config)]:
        return missing
    runs = read_results(folder, configs)
    repeated = dict.fromkeys(c for cell in cells for c in (*choose(spec, cell, runs), *_defaults(cell)))
    seeds = spec.further_seeds(study)
    return [c for config in repeated for seed in seeds if not _is_done(folder, c := config.replace(seed=seed))]


def _is_done(folder: Path, config: RunConfig) -> bool:
    return Run(folder / config.digest).metrics.is_done


def load_all_data(cells: Sequence[Cell], data_dir: Path | None) -> dict[str, int]:
    """Load each data set once and return the number of classes in each column.

    Missing data raise before anything is trained, and decoded images are in the cache for the runs.
    """
    keys = ("data", "train_split", "glove", "image_size", "image_column", "label_column", "window")
    sets = {cell.column: tuple(getattr(c, key) for key in keys) for cell in cells for c in cell.configs}
    classes = {}
    for name, *options in dict.fromkeys(sets.values()):
        task = data.load(name, data_dir=data_dir, **dict(zip(keys[1:], options, strict=True)))
        classes[name, *options] = task.description.num_classes
    return {column: classes[key] for column, key in sets.items()}


def choose(spec: ColumnsSpec, cell: Cell, runs: pd.DataFrame) -> list[RunConfig]:
    """The best configuration, if any works; in a grid with each seed."""
    seeds = _rows(spec, cell, runs, cell.configs).groupby(pd.Index(map(_setting, cell.configs)), sort=False)
    working = {str(setting): found for setting, found in seeds if found.works.all()}
    chosen = best_setting(working, spec.select_on_in(cell.column))
    return [config for config in cell.configs if _setting(config) == chosen]
