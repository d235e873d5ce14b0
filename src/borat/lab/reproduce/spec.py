"""What an experiment is: methods and columns, configurations at both scales, the paper's numbers and claims.

Inside, accuracies are between 0 and 1; in the files they are in percent, as the paper prints them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Self

from pydantic import Field, model_validator

from borat.lab.config import RunConfig
from borat.lab.files import pick
from borat.lab.metrics import METRICS
from borat.lab.settings import Listed, Settings
from borat.lab.sweeps.grid import Layer
from borat.lab.timing.runtime import Runtime

KINDS = ("table", "grid", "curves", "runtime", "scoreboard")
SCALES = ("full", "mini")
STATISTICS = ("value", "best", "mean", "usable")


class SpecTable(Settings):
    """A column, a method or a case: what it is called or where it applies, and what it sets."""

    full: Layer
    mini: Layer
    name: str = ""
    columns: Listed[str] = ()
    """Those it is in; all if empty."""
    methods: Listed[str] = ()
    metric: str = ""
    """What a column of a scoreboard shows, and ``select_on`` what is chosen by there, where it is not the common."""
    select_on: str = ""
    paper: str = ""
    """The row of the paper's table that a method is compared with."""

    def covers(self, method: str, column: str) -> bool:
        return (not self.columns or column in self.columns) and (not self.methods or method in self.methods)


class Published(Settings):
    """A number of the paper."""

    mean: float
    std: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        return value if isinstance(value, dict | cls) else {"mean": value}


class Claim(Settings):
    """A sentence of the paper about its results, in a form that can be checked.

    The ``statistic`` of a method is its ``value`` in the table; in a grid it is the ``best`` or the ``mean`` over the
    cells, or the number of ``usable`` cells (see :mod:`borat.lab.robustness`). ``where`` keeps the cells with these
    values of these keys only. A cell is the mean over the seeds, and not usable if one diverged. In a mean over cells,
    a run that diverged has an accuracy of 0, or an infinite loss.

    Each group of methods in ``order`` must be at least as good as the next, that is its worst as the other's best, by
    ``margin`` or ``factor``; without these, the first must be better than the last. Or each method must reach
    ``at_least`` or ``at_most``.

    A claim about another ``metric`` than the table's, or about an earlier ``epoch`` than the last, takes the value from
    the record of that epoch, counted from 1.
    """

    text: str
    statistic: str = "value"
    order: Listed[Listed[str]] = ()
    methods: Listed[str] = ()
    columns: Listed[str] = ()
    where: dict[str, list[Any]] = Field(default_factory=dict)
    margin: float = 0.0
    factor: float = 1.0
    at_least: float | None = None
    at_most: float | None = None
    scale: str = ""
    """The only scale at which it can be checked, if there is one."""
    metric: str = ""
    epoch: int = 0

    @model_validator(mode="before")
    @classmethod
    def _groups(cls, values: Any) -> Any:
        """A method alone is a group, too."""
        if not isinstance(values, dict) or not isinstance(values.get("order", ()), list | tuple):
            return values
        groups = [(group,) if isinstance(group, str) else group for group in values.get("order", ())]
        return {**values, "order": groups}

    @model_validator(mode="after")
    def _check(self) -> Self:
        pick("statistic", self.statistic, STATISTICS)
        if self.metric:
            pick("metric", self.metric, METRICS)
        if self.epoch < 0 or ((self.epoch or self.metric) and self.statistic != "value"):
            raise ValueError(f"the claim {self.text!r} needs the statistic value and an epoch from 1 on")
        bounded = self.methods and (self.at_least is not None or self.at_most is not None)
        if not (len(self.order) > 1 or bounded):
            raise ValueError(f"the claim {self.text!r} needs an order, or methods and a bound")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return self.methods + tuple(name for group in self.order for name in group)


class Mini(Settings):
    """What the mini scale changes."""

    layer: Layer = Layer()
    methods: Listed[str] = ()
    columns: Listed[str] = ()
    seeds: Listed[int] = ()
    differences: Listed[str] = ()
    runtime: dict[str, Any] = Field(default_factory=dict)


class Spec(Settings):
    """One experiment."""

    name: str
    title: str
    source: str
    question: str
    kind: str
    protocol: str
    needs: str = ""
    notes: Listed[str] = ()
    metric: str = "test_accuracy"
    select_on: str = "validation_accuracy"
    seeds: Listed[int] = (0,)
    base: Layer = Layer()
    columns: Listed[SpecTable] = ()
    methods: Listed[SpecTable] = ()
    cases: Listed[SpecTable] = ()
    paper: dict[str, dict[str, Published]] = Field(default_factory=dict)
    marks: dict[str, str] = Field(default_factory=dict)
    claims: Listed[Claim] = ()
    goal: Listed[str] = ()
    """The methods of a scoreboard that should need no tuning: at their defaults as good as the best that is tuned."""
    mini: Mini = Mini()
    runtime: Runtime | None = None

    def metric_in(self, column: str) -> str:
        return next((table.metric for table in self.columns if table.name == column), "") or self.metric

    def select_on_in(self, column: str) -> str:
        return next((table.select_on for table in self.columns if table.name == column), "") or self.select_on

    def at(
        self,
        scale: str,
        *,
        methods: Sequence[str] = (),
        columns: Sequence[str] = (),
        changes: Mapping[str, Any] | None = None,
    ) -> Study:
        """The experiment at one scale, or some of its methods and columns.

        ``changes`` replaces keys of every configuration; a list is a grid, but for the seed.
        """
        mini = pick("scale", scale, SCALES) == "mini"
        rows = _some("method", methods, (mini and self.mini.methods) or tuple(table.name for table in self.methods))
        places = _some("column", columns, (mini and self.mini.columns) or tuple(table.name for table in self.columns))
        wanted = (changes or {}).get("seed", (mini and self.mini.seeds) or self.seeds)
        seeds = (wanted,) if isinstance(wanted, int) else tuple(wanted)
        last = _as_layer({**(changes or {}), "seed": list(seeds) if self.kind == "grid" else seeds[0]})
        layers = {
            (row, place): layer.under(last)
            for place in places
            for row in rows
            if (layer := self._layer(row, place, mini=mini)) is not None
        }
        if not layers and self.kind != "runtime":
            raise ValueError(f"{self.name} has no {', '.join(rows)} in {', '.join(places)}")
        timed = self.runtime and Runtime(**{**self.runtime.model_dump(), **(self.mini.runtime if mini else {})})
        return Study(self, scale, seeds, layers, timed, dict(changes or {}))

    def _layer(self, method: str, column: str, *, mini: bool) -> Layer | None:
        """What a method does in a column, or None where it is not in it."""
        tables = [table for table in self.columns if table.name == column]
        own = [table for table in self.methods if table.name == method and table.covers(method, column)]
        if not own:
            return None
        tables += own + [case for case in self.cases if case.covers(method, column)]
        layers = [table.full for table in tables]
        if mini:
            layers += [self.mini.layer, *(table.mini for table in tables)]
        return reduce(Layer.under, layers, self.base)


@dataclass(frozen=True)
class Study:
    """An experiment at one scale, or a part of it: what its tables come to, and nothing that is left to look up."""

    spec: Spec
    scale: str
    seeds: tuple[int, ...]
    """Of what is shown: in a grid of all configurations, else of the chosen ones."""
    layers: Mapping[tuple[str, str], Layer]
    """What each method does in each column that it is in, with the first seed or, in a grid, with all."""
    runtime: Runtime | None
    """What to time, where nothing is trained."""
    changes: Mapping[str, Any]
    """What was given by hand."""

    @property
    def further_seeds(self) -> tuple[int, ...]:
        """Those that only the chosen configurations have: none in a grid, where each is trained with all."""
        return () if self.spec.kind == "grid" else self.seeds[1:]

    @property
    def heading(self) -> str:
        return f"{self.spec.title} ({self.spec.source}), {self.scale} scale"


def _some(what: str, wanted: Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    chosen = {pick(what, name, known) for name in wanted}
    return tuple(name for name in known if name in chosen) if wanted else known


def _as_layer(changes: Mapping[str, Any]) -> Layer:
    grid = {key: value for key, value in changes.items() if isinstance(value, list)}
    return Layer({key: value for key, value in changes.items() if key not in grid}, grid)


def layer_of(where: str, settings: Mapping[str, Any], grid: Mapping[str, Any]) -> Layer:
    """Keys of a configuration and lists of values, checked."""
    for key in (*settings, *grid):
        pick(f"key of {where}", key, RunConfig.model_fields)
    for key, options in grid.items():
        if not isinstance(options, list) or not options:
            raise ValueError(f"{where}: grid.{key} must be a list of values, got {options!r}")
    return Layer(dict(settings), dict(grid))
