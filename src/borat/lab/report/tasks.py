"""Contents of a report, from the table of runs: tasks, settings, means over seeds, grids of two parameters."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from borat.lab.config import CHOICES, SHARED_KEYS, TASK_KEYS, RunConfig
from borat.lab.methods import label_rank, sort_labels
from borat.lab.metrics import METRICS, Mean, best, primary_measure
from borat.lab.robustness import Trial, Usable, as_accuracy, usable
from borat.lab.store.records import RESULTS, Collection, best_setting, by_setting, number
from borat.lab.store.run import LOST, STATUSES

LOSS_NAMES = {"ce": "cross-entropy", "hinge": "multi-class hinge", "smooth-hinge": "smooth hinge", "top5": "top-5 loss"}
RESULT_COLUMN = {measure: column for column, measure in RESULTS.items()}
"""Columns of the table of runs, by measure."""
MANY_METHODS = 6
"""Largest number of methods whose lines over the learning rate are distinguishable."""


@dataclass(frozen=True, eq=False)
class Setting:
    """All runs that differ only in their seed."""

    config: RunConfig
    runs: pd.DataFrame
    """In the order of their seeds."""
    measure: str
    """Measure of the result: accuracy or loss."""

    @property
    def method(self) -> str:
        return self.config.method

    @property
    def label(self) -> str:
        """Text of the hyperparameters, without the method."""
        config, default = self.config, RunConfig()
        keys = [key for key in CHOICES if key == "lr" or getattr(config, key) != getattr(default, key)]
        return ", ".join(f"{key.replace('_', ' ')} {getattr(config, key):g}" for key in keys)

    @property
    def lost(self) -> int:
        """Number of seeds that diverged or failed."""
        return int(self.runs.status.isin(LOST).sum())

    @property
    def status(self) -> str:
        """Diverged or failed if any seed did; running if none has ended yet."""
        return next(status for status in (*LOST, "finished", "running") if (self.runs.status == status).any())

    @property
    def statuses(self) -> str:
        """The status that all seeds share, or the number of seeds with each."""
        counts = {status: count for status in STATUSES if (count := (self.runs.status == status).sum())}
        return ", ".join(f"{count} {status}" if len(counts) > 1 else status for status, count in counts.items())

    @cached_property
    def result(self) -> Mean | None:
        """Accuracy or loss over the seeds that finished."""
        return Mean.of(self.runs[RESULT_COLUMN[self.measure]][self.runs.status == "finished"])

    @property
    def outcome(self) -> float:
        """Mean result, or NaN if a seed was lost or none has finished."""
        return self.result.mean if self.result and not self.lost else math.nan

    def curve(self, key: str) -> list[Mean | None]:
        """Return a measurement over the epochs."""
        epochs = [[number(epoch.get(key)) for epoch in history] for history in self.runs.history]
        return [Mean.of(x[i] for x in epochs if i < len(x)) for i in range(max(map(len, epochs), default=0))]

    @cached_property
    def kinds(self) -> list[Counter[str]]:
        """Number of updates of each kind, by epoch, over all seeds."""
        counts = [Counter[str]() for _ in range(max(map(len, self.runs.history), default=0))]
        for history in self.runs.history:
            for total, epoch in zip(counts, history, strict=False):
                for kind, count in (epoch.get("kinds") or {}).items():
                    total[name_kind(kind)] += int(count)
        return counts if any(counts) else []


Place = tuple[float, float | None]
"""A learning rate and, if it was varied, a second parameter."""


@dataclass(frozen=True)
class ResultGrid:
    """The result over the learning rate and, if it was varied, over a second parameter."""

    second: str | None
    """Key of the second parameter."""
    lrs: tuple[float, ...]
    second_values: tuple[float | None, ...]
    cells: dict[str, dict[Place, Setting]]
    """Settings by method and place; the best one if further keys were varied."""

    @property
    def form(self) -> str:
        """Form of the figure: heatmaps, lines over the learning rate, or one row of dots for each method."""
        if self.second is not None:
            return "heatmaps"
        return "lines" if len(self.lrs) > 1 and len(self.cells) <= MANY_METHODS else "dots"


@dataclass(frozen=True)
class TaskGroup:
    """Settings that may be compared: they solve the same problem with the same budget."""

    parts: tuple[str, ...]
    """The task in words: data, model, loss, budget and other keys that are not at their default."""
    settings: tuple[Setting, ...]
    measure: str
    """Measure of the results: accuracy or loss."""
    select_on: str
    """Metric by which the best setting is chosen."""

    @property
    def name(self) -> str:
        return ", ".join(self.parts)

    @cached_property
    def methods(self) -> list[str]:
        return sort_labels(setting.method for setting in self.settings)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """Runs of all settings."""
        return pd.concat([setting.runs for setting in self.settings])

    @property
    def metric(self) -> str:
        """Measure and split of the results, in words."""
        finished, key = self.runs[self.runs.status == "finished"], f"test_{self.measure}"
        on_test = finished[key].notna() if key in finished else pd.Series(dtype=bool)
        if on_test.any():
            return f"test {self.measure}" if on_test.all() else self.measure
        return f"validation {self.measure}"

    @cached_property
    def best(self) -> dict[str, Setting]:
        """The best setting of each method, by ``select_on``."""
        return {m: choose([s for s in self.settings if s.method == m], self.select_on) for m in self.methods}

    @cached_property
    def grid(self) -> ResultGrid:
        """The settings that have ended."""
        ended = [setting for setting in self.settings if setting.status != "running"]
        second = next((k for k in ("radius", "weight_decay") if len({getattr(s.config, k) for s in ended}) > 1), None)
        tried: dict[str, dict[Place, list[Setting]]] = {}
        for setting in sorted(ended, key=lambda s: label_rank(s.method)):
            place = (setting.config.lr, getattr(setting.config, second) if second else None)
            tried.setdefault(setting.method, {}).setdefault(place, []).append(setting)
        cells = {m: {place: choose(same, self.select_on) for place, same in of.items()} for m, of in tried.items()}
        places = {place for of in cells.values() for place in of}
        second_values = sorted({value for _, value in places}, key=lambda value: (value is None, value))
        return ResultGrid(second, tuple(sorted({lr for lr, _ in places})), tuple(second_values), cells)

    @cached_property
    def usable(self) -> list[Usable]:
        """Settings of each method within two points, or 5 % of the loss, of the best."""
        cells = ((method, *place, s) for method, of in self.grid.cells.items() for place, s in of.items())
        scale = as_accuracy if self.measure == "loss" else float
        return usable(Trial(method, lr, second, scale(setting.outcome)) for method, lr, second, setting in cells)

    @property
    def top(self) -> float | None:
        """The best result of all settings."""
        return best((setting.outcome for setting in self.settings), float, self.metric)


def group(found: Collection) -> list[TaskGroup]:
    """Group runs into tasks and settings, both sorted by name."""
    tasks: dict[tuple[Any, ...], dict[RunConfig, pd.DataFrame]] = {}
    keys = [key for key in RunConfig.model_fields if key not in SHARED_KEYS]
    for config, runs in by_setting(found.runs.sort_values("seed", kind="stable")).items():
        tasks.setdefault(tuple(config.identity[key] for key in keys), {})[config] = runs
    groups = []
    for settings in tasks.values():
        measured = [x for x in METRICS if any(x in runs and runs[x].notna().any() for runs in settings.values())]
        measure = primary_measure(measured) if measured else "accuracy"
        ordered = [Setting(config, settings[config], measure) for config in sorted(settings, key=_place_in_table)]
        run = next(iter(settings.values())).index[0]
        around = [e for e in found.experiments if not e.folder or run.startswith(f"{e.folder}/")]
        innermost = max(around, key=lambda e: len(e.folder), default=None)
        select_on = innermost.select_on if innermost else f"validation_{measure}"
        groups.append(TaskGroup(describe(next(iter(settings))), tuple(ordered), measure, select_on))
    return sorted(groups, key=lambda task: task.parts)


def _place_in_table(config: RunConfig) -> tuple[Any, ...]:
    return (label_rank(config.method), config.lr, config.radius or float("inf"), config.weight_decay, config.momentum)


def choose(settings: Sequence[Setting], select_on: str) -> Setting:
    """Return the best setting; a running or lost one only if no other has finished."""

    def score(setting: Setting) -> float:
        return float(setting.runs[select_on].mean()) if select_on in setting.runs else math.nan

    chosen = best_setting({place: setting.runs for place, setting in enumerate(settings)}, select_on)
    return settings[chosen] if chosen is not None else best(settings, score, select_on) or settings[0]


def short_names(tasks: Sequence[TaskGroup]) -> list[str]:
    """Return the names of tasks without the parts that they all share."""
    shared = set.intersection(*(set(task.parts) for task in tasks)) if len(tasks) > 1 else set()
    return [", ".join(part for part in task.parts if part not in shared) for task in tasks]


def describe(config: RunConfig) -> tuple[str, ...]:
    """Return the task of a run in words."""
    if config.task is not None:
        options = {key: getattr(config, key) for key in TASK_KEYS[1:]}
        return (config.task, *(f"{key} {value:g}" for key, value in options.items() if value is not None))
    parts = [config.data, config.model, LOSS_NAMES.get(config.loss, config.loss)]
    defaults = RunConfig()
    for key, value in config.identity.items():
        is_shown = key in ("epochs", "batch_size") or value != getattr(defaults, key)
        if is_shown and key not in ("data", "model", "loss", *SHARED_KEYS):
            parts.append(f"{key.replace('_', ' ')} {value}")
    return tuple(parts)


def name_kind(kind: str) -> str:
    """Return the name of a kind of step: the paper's, or the size of a larger support and whether it has the bound.

    >>> name_kind("MAX3"), name_kind("0+2+B"), name_kind("1"), name_kind("B")
    ('MAX3', '2 pieces + bound', '1 piece', 'bound only')
    """
    if not re.fullmatch(r"[\dB]+(\+[\dB]+)*", kind):
        return kind
    pieces = [part for part in kind.split("+") if part != "B"]
    if not pieces:
        return "bound only"
    return f"{len(pieces)} piece{'s' * (len(pieces) > 1)}" + (" + bound" if "B" in kind else "")
