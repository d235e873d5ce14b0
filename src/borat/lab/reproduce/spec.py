"""What an experiment is: methods and columns, configurations at both scales, the paper's numbers and claims."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from borat.lab.config import RunConfig

KINDS = ("table", "grid", "curves", "runtime")
SCALES = ("full", "mini")
STATISTICS = ("value", "best", "mean", "usable")
METRICS = tuple(
    f"{split}_{name}" for split in ("train", "validation", "test") for name in ("accuracy", "loss", "top5_accuracy")
)
KEYS = tuple(f.name for f in dataclasses.fields(RunConfig))


@dataclass(frozen=True)
class Layer:
    """Keys of a configuration, and keys with several values to try."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def under(self, other: Layer) -> Layer:
        """This layer with another one over it."""
        kept = {key: values for key, values in self.grid.items() if key not in other.settings}
        return Layer({**self.settings, **other.settings}, {**kept, **other.grid})


@dataclass(frozen=True)
class Entry:
    """A column, a method or a case: what it is called or where it applies, and what it sets."""

    full: Layer
    mini: Layer
    name: str = ""
    columns: tuple[str, ...] = ()
    """Those it is in; all if empty."""
    methods: tuple[str, ...] = ()
    paper: str = ""
    """The row of the paper's table that a method is compared with."""

    def covers(self, method: str, column: str) -> bool:
        return (not self.columns or column in self.columns) and (not self.methods or method in self.methods)


@dataclass(frozen=True)
class Published:
    """A number of the paper, in its unit: accuracies in percent."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper about its results, in a form that can be checked.

    The ``statistic`` of a method is its ``value`` in the table; in a grid it is the ``best`` or the ``mean`` over the
    cells, or the number of ``usable`` cells (see :mod:`borat.lab.robustness`). ``where`` keeps the cells with these
    values of these keys only. In a mean of accuracies, a run that diverged counts as 0.

    Each group of methods in ``order`` must be at least as good as the next, that is its worst as the other's best, by
    ``margin`` (accuracies in percentage points) or ``factor``; without these, the first must be better than the last.
    Or each method must reach ``at_least`` or ``at_most``.

    A claim about another ``metric`` than the table's, or about an earlier ``epoch`` than the last, takes the value from
    the record of that epoch, counted from 1.
    """

    text: str
    statistic: str = "value"
    order: tuple[tuple[str, ...], ...] = ()
    methods: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    where: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    margin: float = 0.0
    factor: float = 1.0
    at_least: float | None = None
    at_most: float | None = None
    scale: str = ""
    """The only scale at which it can be checked, if there is one."""
    metric: str = ""
    epoch: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return self.methods + tuple(name for group in self.order for name in group)


@dataclass(frozen=True)
class Runtime:
    """A model and a batch to time. ``rounds`` is how often each bundle size takes its turn."""

    model: str
    input_shape: tuple[int, ...]
    classes: int
    batch_size: int
    examples: int
    """Of an epoch."""
    bundle_sizes: tuple[int, ...]
    reference: str
    """The row that the ratios are to."""
    loss: str = "ce"
    rounds: int = 15


@dataclass(frozen=True)
class Mini:
    """What the mini scale changes."""

    layer: Layer = Layer()
    methods: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    differences: tuple[str, ...] = ()
    runtime: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Spec:
    """One experiment."""

    name: str
    title: str
    source: str
    question: str
    kind: str
    protocol: str
    needs: str = ""
    notes: tuple[str, ...] = ()
    metric: str = "test_accuracy"
    select_on: str = "validation_accuracy"
    seeds: tuple[int, ...] = (0,)
    base: Layer = Layer()
    columns: tuple[Entry, ...] = ()
    methods: tuple[Entry, ...] = ()
    cases: tuple[Entry, ...] = ()
    paper: Mapping[str, Mapping[str, Published]] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    mini: Mini = Mini()
    runtime: Runtime | None = None

    def method_names(self, scale: str) -> tuple[str, ...]:
        return (scale == "mini" and self.mini.methods) or tuple(method.name for method in self.methods)

    def column_names(self, scale: str) -> tuple[str, ...]:
        return (scale == "mini" and self.mini.columns) or tuple(column.name for column in self.columns)

    def seeds_at(self, scale: str) -> tuple[int, ...]:
        return (scale == "mini" and self.mini.seeds) or self.seeds

    def runtime_at(self, scale: str) -> Runtime | None:
        changes = self.mini.runtime if scale == "mini" else {}
        return dataclasses.replace(self.runtime, **changes) if self.runtime else None

    def layer(self, scale: str, method: str, column: str) -> Layer | None:
        """What a method does in a column, or None where it is not in it."""
        entries = [entry for entry in self.columns if entry.name == column]
        own = [entry for entry in self.methods if entry.name == method and entry.covers(method, column)]
        if not own:
            return None
        entries += own + [case for case in self.cases if case.covers(method, column)]
        layers = [entry.full for entry in entries]
        if scale == "mini":
            layers += [self.mini.layer, *(entry.mini for entry in entries)]
        layer = self.base
        for upper in layers:
            layer = layer.under(upper)
        return layer


def lower_is_better(metric: str) -> bool:
    return metric.endswith("_loss")
