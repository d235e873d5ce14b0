"""From records to what is drawn: tasks, the settings tried on each, means over seeds, and grids of two parameters."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from borat.lab.config import RunConfig
from borat.lab.methods import method_rank, sort_methods
from borat.lab.robustness import Trial, Usable, usable
from borat.lab.store.records import Record, number

METHOD_KEYS = ("optimizer", "bundle_size", "schedule", "lr", "momentum", "weight_decay", "radius")
"""What a method may choose. All other keys but the seed make up the task."""

LOSS_NAMES = {"ce": "cross-entropy", "hinge": "multi-class hinge", "smooth-hinge": "smooth hinge", "top5": "top-5 loss"}
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
        """Over the values that are there, or None without any."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


@dataclass(frozen=True)
class Setting:
    """All runs that differ in nothing but the seed."""

    config: RunConfig
    records: tuple[Record, ...]

    @property
    def method(self) -> str:
        return self.config.method

    @property
    def diverged(self) -> int:
        return sum(record.status == "diverged" for record in self.records)

    @property
    def status(self) -> str:
        """Diverged if any seed did; running if none has ended yet."""
        statuses = {record.status for record in self.records}
        return next(status for status in ("diverged", "finished", "running") if status in statuses)

    @cached_property
    def accuracy(self) -> Mean | None:
        """Over the seeds that finished."""
        return Mean.of(record.accuracy for record in self.records if record.status == "finished")

    @property
    def outcome(self) -> float:
        """The mean accuracy, or NaN if a seed diverged or none has finished."""
        return self.accuracy.mean if self.accuracy and not self.diverged else float("nan")

    @cached_property
    def validation(self) -> Mean | None:
        """The last validation accuracy, by which the best setting is chosen."""
        return Mean.of(record.last("validation_accuracy") for record in self.records)

    def curve(self, key: str) -> list[Mean | None]:
        """A measurement over the epochs."""
        series = [[number(epoch.get(key)) for epoch in record.metrics.epochs] for record in self.records]
        longest = max(map(len, series), default=0)
        return [Mean.of(values[i] for values in series if i < len(values)) for i in range(longest)]

    def kinds(self) -> list[Counter[str]]:
        """How many updates were of each kind, epoch by epoch, over all seeds."""
        counts = [Counter[str]() for _ in self.curve("epoch")]
        for record in self.records:
            for total, epoch in zip(counts, record.metrics.epochs, strict=False):
                for kind, count in (epoch.get("kinds") or {}).items():
                    total[name_kind(kind)] += int(count)
        return counts if any(counts) else []


@dataclass(frozen=True)
class Grid:
    """The accuracy over the learning rate and, where a second parameter was varied, over that one too."""

    second: str | None
    lrs: tuple[float, ...]
    seconds: tuple[float | None, ...]
    cells: dict[str, dict[tuple[float, float | None], Setting]]
    """Method, then (learning rate, second parameter); the best setting where further keys were varied."""

    @property
    def form(self) -> str:
        """How to draw it: as heatmaps, as lines over the learning rate, or as one row of dots for each method."""
        if self.second is not None:
            return "heatmaps"
        return "lines" if len(self.lrs) > 1 and len(self.cells) <= MANY_METHODS else "dots"


@dataclass(frozen=True)
class Task:
    """Settings that may be compared: they solve the same problem with the same budget."""

    parts: tuple[str, ...]
    """What it consists of, in words: data, model, loss, budget and whatever else is not as usual."""
    settings: tuple[Setting, ...]

    @property
    def name(self) -> str:
        return ", ".join(self.parts)

    @property
    def methods(self) -> list[str]:
        return sort_methods(setting.method for setting in self.settings)

    @property
    def metric(self) -> str:
        metrics = {r.metric for s in self.settings for r in s.records if r.status == "finished"}
        return (
            "test accuracy"
            if metrics == {"test accuracy"}
            else "accuracy"
            if len(metrics) > 1
            else "validation accuracy"
        )

    @cached_property
    def best(self) -> dict[str, Setting]:
        """The setting of each method with the highest validation accuracy."""
        return {method: choose(s for s in self.settings if s.method == method) for method in self.methods}

    @cached_property
    def grid(self) -> Grid:
        """Of the runs that have ended."""
        ended = [setting for setting in self.settings if setting.status != "running"]
        second = next((k for k in ("radius", "weight_decay") if len({getattr(s.config, k) for s in ended}) > 1), None)
        places: dict[str, dict[tuple[float, float | None], list[Setting]]] = {}
        for setting in sorted(ended, key=lambda s: method_rank(s.method)):
            place = (setting.config.lr, getattr(setting.config, second) if second else None)
            places.setdefault(setting.method, {}).setdefault(place, []).append(setting)
        cells = {m: {place: choose(same) for place, same in of_method.items()} for m, of_method in places.items()}
        tried = {place for of_method in cells.values() for place in of_method}
        seconds = sorted({value for _, value in tried}, key=lambda value: (value is None, value))
        return Grid(second, tuple(sorted({lr for lr, _ in tried})), tuple(seconds), cells)

    @cached_property
    def usable(self) -> list[Usable]:
        """The verdict: which settings are within two points of the best."""
        cells = ((method, *place, s) for method, of in self.grid.cells.items() for place, s in of.items())
        return usable(Trial(method, lr, second, setting.outcome) for method, lr, second, setting in cells)

    @property
    def top(self) -> float | None:
        """The best accuracy of all settings."""
        return max((s.outcome for s in self.settings if not math.isnan(s.outcome)), default=None)


def group(records: Sequence[Record]) -> list[Task]:
    """Sort records into tasks and settings, both by name."""
    tasks: dict[tuple[Any, ...], dict[RunConfig, list[Record]]] = {}
    keys = [f.name for f in fields(RunConfig) if f.name not in (*METHOD_KEYS, "seed")]
    for record in records:
        task = tuple(getattr(record.config, key) for key in keys)
        tasks.setdefault(task, {}).setdefault(record.config.replace(seed=0), []).append(record)
    found = [
        Task(
            describe(next(iter(settings))),
            tuple(
                Setting(config, tuple(sorted(settings[config], key=lambda r: r.config.seed)))
                for config in sorted(settings, key=_place_in_table)
            ),
        )
        for settings in tasks.values()
    ]
    return sorted(found, key=lambda task: task.parts)


def _place_in_table(config: RunConfig) -> tuple[Any, ...]:
    return (method_rank(config.method), config.lr, config.radius or float("inf"), config.weight_decay, config.momentum)


def choose(settings: Iterable[Setting]) -> Setting:
    """The one with the best validation accuracy; one that is running or diverged only where no other has finished."""
    return max(settings, key=lambda s: (s.status == "finished", s.validation.mean if s.validation else -1.0))


def short_names(tasks: Sequence[Task]) -> list[str]:
    """The names of tasks without the parts that they all share."""
    shared = set.intersection(*(set(task.parts) for task in tasks)) if len(tasks) > 1 else set()
    return [", ".join(part for part in task.parts if part not in shared) for task in tasks]


def describe(config: RunConfig) -> tuple[str, ...]:
    """The parts of the task of a run."""
    usual = RunConfig()
    parts = [config.data, config.model, LOSS_NAMES.get(config.loss, config.loss)]
    if config.label_noise:
        parts.append(f"label noise {config.label_noise:g}")
    if config.train_limit is not None:
        parts.append(f"{config.train_limit} examples")
    parts.append(f"{config.epochs} epoch{'s' * (config.epochs != 1)}")
    parts.append(f"batches of {config.batch_size}")
    named = {"data", "model", "loss", "label_noise", "train_limit", "epochs", "batch_size", "seed", *METHOD_KEYS}
    for key in fields(config):
        value = getattr(config, key.name)
        if key.name not in named and value != getattr(usual, key.name):
            parts.append(f"{key.name.replace('_', ' ')} {value}")
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
