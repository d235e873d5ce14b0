"""From the table of runs to what is drawn: tasks, settings tried on each, means over seeds, grids of two parameters."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from borat.lab.config import TASK_KEYS, RunConfig
from borat.lab.methods import label_rank, sort_labels
from borat.lab.metrics import METRICS, best, judge
from borat.lab.robustness import Trial, Usable, as_accuracy, usable
from borat.lab.store.experiment import Experiment
from borat.lab.store.records import RESULTS, Collection, best_setting, configs_of, number
from borat.lab.store.run import LOST

METHOD_KEYS = ("optimizer", "bundle_size", "schedule", "lr", "momentum", "weight_decay", "radius")
"""Keys that a method may choose. All others but the seed make up the task."""

LOSS_NAMES = {"ce": "cross-entropy", "hinge": "multi-class hinge", "smooth-hinge": "smooth hinge", "top5": "top-5 loss"}
RESULT_COLUMN = {measure: column for column, measure in RESULTS.items()}
"""Columns of the table of runs, by measure."""
MANY_METHODS = 6
"""Beyond as many, lines over the learning rate cannot be told apart."""


@dataclass(frozen=True)
class Mean:
    """Mean and sample standard deviation; the latter is None for a single value."""

    mean: float
    std: float | None
    runs: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Mean | None:
        """Over the values that are numbers, or None without any."""
        known = [value for value in values if value is not None and not math.isnan(value)]
        if not known:
            return None
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


@dataclass(frozen=True, eq=False)
class Setting:
    """All runs that differ in nothing but the seed."""

    config: RunConfig
    runs: pd.DataFrame
    """In the order of their seeds."""
    measure: str = "accuracy"
    """The measure that judges them: accuracy or loss."""

    @property
    def method(self) -> str:
        return self.config.method

    @property
    def lost(self) -> int:
        """Number of seeds that diverged or failed."""
        return int(self.runs.status.isin(LOST).sum())

    @property
    def status(self) -> str:
        """Diverged or failed if any seed did; running if none has ended yet."""
        return next(status for status in (*LOST, "finished", "running") if (self.runs.status == status).any())

    @cached_property
    def result(self) -> Mean | None:
        """The accuracy, or the loss, over the seeds that finished."""
        return Mean.of(self.runs[RESULT_COLUMN[self.measure]][self.runs.status == "finished"])

    @property
    def outcome(self) -> float:
        """Mean result, or NaN if a seed was lost or none has finished."""
        return self.result.mean if self.result and not self.lost else math.nan

    def score(self, metric: str) -> float:
        """Return the mean of a metric so far, or NaN without one."""
        return float(self.runs[metric].mean()) if metric in self.runs else math.nan

    def curve(self, key: str) -> list[Mean | None]:
        """A measurement over the epochs."""
        series = [[number(epoch.get(key)) for epoch in history] for history in self.runs.history]
        longest = max(map(len, series), default=0)
        return [Mean.of(x[i] for x in series if i < len(x)) for i in range(longest)]

    @cached_property
    def kinds(self) -> list[Counter[str]]:
        """Number of updates of each kind, by epoch, over all seeds."""
        counts = [Counter[str]() for _ in range(max(map(len, self.runs.history), default=0))]
        for history in self.runs.history:
            for total, epoch in zip(counts, history, strict=False):
                for kind, count in (epoch.get("kinds") or {}).items():
                    total[name_kind(kind)] += int(count)
        return counts if any(counts) else []


@dataclass(frozen=True)
class AccuracyGrid:
    """The accuracy, or the loss, over the learning rate and, where a second parameter was varied, over that one too."""

    second: str | None
    lrs: tuple[float, ...]
    seconds: tuple[float | None, ...]
    cells: dict[str, dict[tuple[float, float | None], Setting]]
    """Method, then (learning rate, second parameter); the best setting where further keys were varied."""

    @property
    def form(self) -> str:
        """Form of the figure: heatmaps, lines over the learning rate, or one row of dots for each method."""
        if self.second is not None:
            return "heatmaps"
        return "lines" if len(self.lrs) > 1 and len(self.cells) <= MANY_METHODS else "dots"


@dataclass(frozen=True)
class TaskReport:
    """Settings that may be compared: they solve the same problem with the same budget."""

    parts: tuple[str, ...]
    """Its parts in words: data, model, loss, budget and other keys that are not at their default."""
    settings: tuple[Setting, ...]
    select_on: str = "validation_accuracy"
    """The measurement by which the best setting is chosen."""

    @property
    def measure(self) -> str:
        """The measure that judges it: accuracy or loss."""
        return self.settings[0].measure

    @property
    def name(self) -> str:
        return ", ".join(self.parts)

    @property
    def methods(self) -> list[str]:
        return sort_labels(setting.method for setting in self.settings)

    @property
    def runs(self) -> pd.DataFrame:
        """Of all settings, one after the other."""
        return pd.concat([setting.runs for setting in self.settings])

    @property
    def metric(self) -> str:
        """The measure that judges it, and its split."""
        finished = self.runs[self.runs.status == "finished"]
        key = f"test_{self.measure}"
        on_test = finished[key].notna() if key in finished else pd.Series(dtype=bool)
        if on_test.any():
            return f"test {self.measure}" if on_test.all() else self.measure
        return f"validation {self.measure}"

    @cached_property
    def best(self) -> dict[str, Setting]:
        """The setting of each method with the best validation accuracy, or what else its experiment chooses by."""
        return {
            method: choose([s for s in self.settings if s.method == method], self.select_on) for method in self.methods
        }

    @cached_property
    def grid(self) -> AccuracyGrid:
        """Of the runs that have ended."""
        ended = [setting for setting in self.settings if setting.status != "running"]
        second = next((k for k in ("radius", "weight_decay") if len({getattr(s.config, k) for s in ended}) > 1), None)
        places: dict[str, dict[tuple[float, float | None], list[Setting]]] = {}
        for setting in sorted(ended, key=lambda s: label_rank(s.method)):
            place = (setting.config.lr, getattr(setting.config, second) if second else None)
            places.setdefault(setting.method, {}).setdefault(place, []).append(setting)
        cells = {
            m: {place: choose(same, self.select_on) for place, same in of_method.items()}
            for m, of_method in places.items()
        }
        tried = {place for of_method in cells.values() for place in of_method}
        seconds = sorted({value for _, value in tried}, key=lambda value: (value is None, value))
        return AccuracyGrid(second, tuple(sorted({lr for lr, _ in tried})), tuple(seconds), cells)

    @cached_property
    def usable(self) -> list[Usable]:
        """The verdict: which settings are within two points, or 5 % of the loss, of the best."""
        cells = ((method, *place, s) for method, of in self.grid.cells.items() for place, s in of.items())
        scale = as_accuracy if self.measure == "loss" else float
        return usable(Trial(method, lr, second, scale(setting.outcome)) for method, lr, second, setting in cells)

    @property
    def top(self) -> float | None:
        """The best result of all settings."""
        return best((setting.outcome for setting in self.settings), float, self.metric)


def group(found: Collection) -> list[TaskReport]:
    """Sort runs into tasks and settings, both by name."""
    tasks: dict[tuple[Any, ...], dict[RunConfig, list[str]]] = {}
    keys = [key for key in RunConfig.model_fields if key not in (*METHOD_KEYS, "seed")]
    runs = found.runs.sort_values("seed", kind="stable")
    for name, config in zip(runs.index, configs_of(runs), strict=True):
        task = tuple(config.identity[key] for key in keys)
        tasks.setdefault(task, {}).setdefault(config.replace(seed=0), []).append(name)
    reports = []
    for settings in tasks.values():
        names = [name for of_setting in settings.values() for name in of_setting]
        measure = _measure(runs.loc[names])
        reports.append(
            TaskReport(
                describe(next(iter(settings))),
                tuple(Setting(c, runs.loc[settings[c]], measure) for c in sorted(settings, key=_place_in_table)),
                _select_on(names[0], found.experiments, f"validation_{measure}"),
            )
        )
    return sorted(reports, key=lambda task: task.parts)


def _measure(runs: pd.DataFrame) -> str:
    """Return the measure that judges runs; accuracy before the first measurement."""
    measured = [name for name in METRICS if name in runs and runs[name].notna().any()]
    return judge(measured) if measured else "accuracy"


def _select_on(run: str, experiments: Sequence[Experiment], usual: str) -> str:
    """As the experiment says that a run belongs to."""
    around = [e for e in experiments if not e.folder or run.startswith(f"{e.folder}/")]
    return max(around, key=lambda e: len(e.folder)).select_on if around else usual


def _place_in_table(config: RunConfig) -> tuple[Any, ...]:
    return (label_rank(config.method), config.lr, config.radius or float("inf"), config.weight_decay, config.momentum)


def choose(settings: Sequence[Setting], select_on: str) -> Setting:
    """The best one; one that is running or lost only if no other has finished."""
    chosen = best_setting({place: setting.runs for place, setting in enumerate(settings)}, select_on)
    if chosen is not None:
        return settings[chosen]
    return best(settings, lambda setting: setting.score(select_on), select_on) or settings[0]


def short_names(tasks: Sequence[TaskReport]) -> list[str]:
    """The names of tasks without the parts that they all share."""
    shared = set.intersection(*(set(task.parts) for task in tasks)) if len(tasks) > 1 else set()
    return [", ".join(part for part in task.parts if part not in shared) for task in tasks]


def describe(config: RunConfig) -> tuple[str, ...]:
    """The parts of the task of a run."""
    usual = RunConfig()
    if config.task is not None:
        return (
            config.task,
            *(f"{key} {value:g}" for key in TASK_KEYS[1:] if (value := getattr(config, key)) is not None),
        )
    parts = [config.data, config.model, LOSS_NAMES.get(config.loss, config.loss)]
    if config.label_noise:
        parts.append(f"label noise {config.label_noise:g}")
    if config.train_limit is not None:
        parts.append(f"{config.train_limit} examples")
    parts.append(f"{config.epochs} epoch{'s' * (config.epochs != 1)}")
    parts.append(f"batches of {config.batch_size}")
    named = {"data", "model", "loss", "label_noise", "train_limit", "epochs", "batch_size", "seed", *METHOD_KEYS}
    for key, value in config.identity.items():
        if key not in named and value != getattr(usual, key):
            parts.append(f"{key.replace('_', ' ')} {value}")
    return tuple(parts)


def name_kind(kind: str) -> str:
    """The paper's names as they are; the many supports of larger bundles by their size and the bound's presence.

    >>> name_kind("MAX3"), name_kind("0+2+B"), name_kind("1"), name_kind("B")
    ('MAX3', '2 pieces + bound', '1 piece', 'bound only')
    """
    if not re.fullmatch(r"[\dB]+(\+[\dB]+)*", kind):
        return kind
    pieces = [part for part in kind.split("+") if part != "B"]
    if not pieces:
        return "bound only"
    return f"{len(pieces)} piece{'s' * (len(pieces) > 1)}" + (" + bound" if "B" in kind else "")
