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
from typing import TYPE_CHECKING, Any, Unpack

from borat.lab.config import RunConfig
from borat.lab.files import pick
from borat.lab.metrics import METRICS, Mean, lower_is_better
from borat.lab.reproduce.spec import RunOptions, Study, StudyResult, duration
from borat.lab.robustness import as_accuracy, best_accuracy, is_usable
from borat.lab.store.records import as_table, best_setting, by_setting, read_runs
from borat.lab.store.run import Metrics, Run

if TYPE_CHECKING:
    import pandas as pd

    from borat.lab.data.task import Description
    from borat.lab.reproduce.training import TrainingSpec


@dataclass(frozen=True)
class Cell:
    """A method in a column of the table."""

    method: str
    column: str
    configs: tuple[RunConfig, ...]
    """Configurations to train, with the first seed or, in a grid, with each."""
    varied: tuple[str, ...]
    """The keys that have several values, except for the seed."""
    defaults: tuple[RunConfig, ...] = ()
    """In a scoreboard, the configuration with the learning rate that its authors recommend."""


@dataclass(frozen=True)
class TrainingStudy(Study):
    """Methods in columns at one scale."""

    spec: TrainingSpec
    seeds: tuple[int, ...]
    """Seeds of the results that are shown."""
    layers: Mapping[tuple[str, str], dict[str, Any]]
    """Values of each method in each column."""

    @property
    def further_seeds(self) -> tuple[int, ...]:
        """Seeds that only the chosen configurations are trained with."""
        return self.seeds[len(self.spec.first_seeds(self.seeds)) :]

    def plan(self) -> list[Cell]:
        """Return the configurations to train for each method in each column."""
        cells = []
        for (method, column), layer in self.layers.items():
            try:
                cells.append(self.spec.make_cell(method, column, layer))
            except ValueError as error:
                raise ValueError(f"{self.spec.name}, {method}, {column}: {error}") from error
        return cells

    def size(self) -> str:
        runs = sum(len(cell.configs) + len(self.further_seeds) * (1 + len(cell.defaults)) for cell in self.plan())
        return f"{runs:,} runs"

    def missing(self, folder: Path) -> list[RunConfig]:
        def to_train(configs: Iterable[RunConfig]) -> list[RunConfig]:
            return [config for config in configs if not Run(folder / config.digest).metrics.is_done]

        cells = self.plan()
        configs = list(dict.fromkeys(config for cell in cells for config in cell.configs))
        return to_train(configs) or to_train(self._repeated(cells, read_results(folder, configs)))

    def run(self, folder: Path, **options: Unpack[RunOptions]) -> Result:
        """Train each configuration in ``folder/<digest>``, unless it is done there."""
        import pandas as pd

        from borat.lab.data import load_for  # imports PyTorch, which reading a file does not need
        from borat.lab.sweeps.sweep import run_configs

        start, cells = time.perf_counter(), self.plan()
        data_dir = options.get("data_dir")
        # raises for missing data before anything is trained, and caches decoded images for the runs
        first = {cell.column: cell.configs[0] for cell in cells if cell.configs[0].task is None}
        data = {column: load_for(config, data_dir).description for column, config in first.items()}
        earlier = {path.name for path in folder.iterdir()} if folder.is_dir() else set()

        def train(configs: Iterable[RunConfig]) -> pd.DataFrame:
            unique, engine, watch = list(dict.fromkeys(configs)), options.get("engine"), options.get("watch")
            outcomes = run_configs(unique, folder, data_dir=data_dir, engine=engine, watch=watch)
            return read_results(folder, unique, [outcome.error for outcome in outcomes])

        runs = train(config for cell in cells for config in cell.configs)
        if repeated := self._repeated(cells, runs):
            runs = pd.concat([runs, train(repeated)])
        found = len(earlier.intersection(runs.index))
        results = tuple(self._result(cell, runs) for cell in cells)
        return Result(self, results, data, found, seconds=time.perf_counter() - start)

    def _repeated(self, cells: Sequence[Cell], runs: pd.DataFrame) -> list[RunConfig]:
        """Return the chosen and the default configurations with the further seeds."""
        wanted = (config for cell in cells for config in (*self._choose(cell, runs), *cell.defaults))
        return [config for config in dict.fromkeys(self._with_seeds(wanted)) if config.digest not in runs.index]

    def _with_seeds(self, configs: Iterable[RunConfig]) -> list[RunConfig]:
        return [config.replace(seed=seed) for config in configs for seed in (config.seed, *self.further_seeds)]

    def _result(self, cell: Cell, runs: pd.DataFrame) -> CellResult:
        chosen, defaults = (self._with_seeds(configs) for configs in (self._choose(cell, runs), cell.defaults))
        return CellResult(cell, *(self._rows(cell, runs, configs) for configs in (cell.configs, chosen, defaults)))

    def _rows(self, cell: Cell, runs: pd.DataFrame, configs: Sequence[RunConfig]) -> pd.DataFrame:
        """Return these runs with the metrics of the cell's column."""
        rows = runs.loc[[config.digest for config in configs]]
        return with_scores(rows, *self.spec.metrics_in(cell.column))

    def _choose(self, cell: Cell, runs: pd.DataFrame) -> list[RunConfig]:
        """Return the best configuration, if any works; in a grid with each seed."""
        settings = by_setting(self._rows(cell, runs, cell.configs))
        working = {config: seeds for config, seeds in settings.items() if seeds.value.notna().all()}
        chosen = best_setting(working, self.spec.metrics_in(cell.column)[1])
        return [config for config in cell.configs if config.replace(seed=0) == chosen]


# Results


@dataclass(frozen=True, eq=False)
class CellResult:
    """Runs of a cell, as tables of :func:`borat.lab.read_runs` with three more columns.

    These are ``value``, the measurement that the table shows; ``score``, the one to choose by; and ``error``, the
    traceback of a failed run. Value and score are NaN unless the run finished and has both. The index holds the digests
    of the configurations.
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
        """One row for each setting: means of the measurements over the seeds, and other columns from its first run.

        The value is NaN if that of a seed is. The status is that of the first seed that did not finish.
        """
        import pandas as pd  # slow to import, and not needed to list experiments

        settings = by_setting(self.runs).values()
        numbers = [name for name in (*METRICS, "value", "score") if name in self.runs]
        means = {name: [seeds[name].mean(skipna=False) for seeds in settings] for name in numbers}
        status = [next((each for each in seeds.status if each != "finished"), "finished") for seeds in settings]
        return pd.concat([seeds[:1] for seeds in settings]).assign(**means, status=status)

    @cached_property
    def result(self) -> Mean | None:
        """Value over the seeds of the chosen configuration that finished."""
        return Mean.of(self.chosen.value)

    @property
    def status(self) -> str:
        """Finished if there is a result, else failed or diverged."""
        if self.result is not None:
            return "finished"
        return "failed" if (self.runs.status == "failed").any() else "diverged"


@dataclass(frozen=True)
class Result(StudyResult):
    """The training runs of an experiment at one scale."""

    study: TrainingStudy
    cells: tuple[CellResult, ...]
    data: Mapping[str, Description] = field(default_factory=dict)
    """Data of each column, except for tasks."""
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
        import pandas as pd

        tables = [table for cell in self.cells for table in (cell.runs, cell.chosen, cell.defaults)]
        every = pd.concat([table for table in tables if len(table)])
        return every[~every.index.duplicated()]

    def usable(self, cell: CellResult) -> pd.Series:
        """Return a mask of the usable settings of a cell, those near the best of all methods in the column."""
        lower = lower_is_better(self.spec.metrics_in(cell.cell.column)[0])

        def accuracies(cell: CellResult) -> pd.Series:
            return cell.settings.value.map(as_accuracy) if lower else cell.settings.value

        top = best_accuracy(x for rival in self.in_column(cell.cell.column) for x in accuracies(rival))
        return accuracies(cell).map(lambda accuracy: is_usable(accuracy, top))

    def timing(self) -> str:
        found = f", which found {self.found} of them begun or done" if self.found else ""
        training = duration(float(self.runs.seconds.sum()))
        return f"{len(self.runs)} runs, {training} of training in all, {super().timing()}{found}"

    def failures(self) -> list[str]:
        failed = self.runs[self.runs.status == "failed"].itertuples()
        return [f"{run.method}, lr {run.lr:g}: {run.error.strip().splitlines()[-1]}" for run in failed]


def mean_with_lost(runs: pd.DataFrame, metric: str) -> float:
    """Return the mean over all runs; one that diverged or failed has an accuracy of 0, or an infinite loss."""
    worst = math.inf if lower_is_better(metric) else 0.0
    return float(runs.value.fillna(worst).mean())


def read_results(folder: Path, configs: Sequence[RunConfig], errors: Sequence[str] = ()) -> pd.DataFrame:
    """Return the measurements of runs; ``errors`` has the tracebacks of those that failed."""
    import pandas as pd

    tracebacks = dict(zip((config.digest for config in configs), errors or [""] * len(configs), strict=True))
    kept = read_runs(folder, [name for name, error in tracebacks.items() if not error])
    failed = as_table((config.digest, config, Metrics("failed")) for config in configs if tracebacks[config.digest])
    runs = pd.concat([table for table in (kept, failed) if len(table)])
    return runs.loc[list(tracebacks)].assign(error=list(tracebacks.values()))


def with_scores(runs: pd.DataFrame, metric: str, select_on: str) -> pd.DataFrame:
    """Return the table with the columns ``value`` and ``score``."""
    for name in (metric, select_on):
        if name not in runs and not (runs.status == "failed").all():
            pick("measurement", name, [known for known in METRICS if known in runs])
    value, score = (runs.get(name, math.nan) for name in (metric, select_on))
    runs = runs.assign(value=value, score=score)
    works = (runs.status == "finished") & runs.value.notna() & runs.score.notna()
    return runs.assign(value=runs.value.where(works), score=runs.score.where(works))
