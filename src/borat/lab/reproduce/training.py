"""Experiments that train methods in columns: the tables of their files, and the configurations of each cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Annotated, Any, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from borat.lab.config import RunConfig
from borat.lab.files import pick
from borat.lab.metrics import METRICS
from borat.lab.reproduce.run import Cell, TrainingStudy
from borat.lab.reproduce.spec import Changes, Mini, Names, Spec
from borat.lab.strict import Listed, StrictModel
from borat.lab.sweeps.grid import expand

MetricName = Annotated[str, AfterValidator(lambda name: name and pick("metric", name, METRICS))]
"""Name of a metric, or an empty string."""
Key = Annotated[str, AfterValidator(lambda name: pick("key", name, RunConfig.model_fields))]
KeyGrid = dict[Key, Annotated[list[Any], Field(min_length=1)]]
"""Values to try for keys of a run's configuration."""
Layer = dict[str, Any]
"""Keys of a run's configuration, each with a value or with a list of values to try."""


class Keys(StrictModel):
    """Keys of a run's configuration, and a grid of values to try."""

    model_config = ConfigDict(extra="allow")

    grid: KeyGrid = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        name = getattr(self, "name", "")
        for key in self.model_extra or ():
            pick(f"key of {name}" if name else "key", key, RunConfig.model_fields)
        return self

    @property
    def layer(self) -> Layer:
        return {**(self.model_extra or {}), **self.grid}


class SpecTable(Keys):
    """A column, a method or a case of a file; its keys replace those of the base."""

    mini: Keys = Keys()


class ColumnTable(SpecTable):
    """A column, such as a data set and a model."""

    name: str


class MethodTable(SpecTable):
    """A method, in all columns or in some of them."""

    name: str
    columns: Listed[str] = ()
    paper: str = ""
    """The row of the paper's table to compare with, if its name differs."""


class CaseTable(SpecTable):
    """An exception for some methods in some columns."""

    methods: Listed[str] = ()
    columns: Listed[str] = ()


class WithBase(StrictModel):
    """The tables ``[base]`` and ``[grid]``, of a file or of its mini scale."""

    base: Keys = Keys()
    grid: KeyGrid = Field(default_factory=dict)

    @property
    def layer(self) -> Layer:
        return _over(self.base.layer, self.grid)


class MiniTraining(WithBase, Mini):
    """Changes of the mini scale where methods are trained in columns."""

    methods: Listed[str] = ()
    columns: Listed[str] = ()
    seeds: Listed[int] = ()


class TrainingSpec(WithBase, Spec):
    """An experiment that trains methods in columns. A kind defines the tables and remarks of its page."""

    metric: MetricName = "test_accuracy"
    select_on: MetricName = "validation_accuracy"
    seeds: Annotated[Listed[int], Field(min_length=1)] = (0,)
    columns: Listed[ColumnTable] = ()
    methods: Listed[MethodTable] = ()
    cases: Listed[CaseTable] = ()
    mini: MiniTraining = MiniTraining()

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for name in (*self.method_names, *self.column_names):
            if not name or "," in name:
                raise ValueError(f"methods and columns need names without commas, got {name!r}")
        for case in self.cases:
            self.check_places(case.methods, case.columns)
        for method in self.methods:
            self.check_places((), method.columns)
        self.check_places(self.mini.methods, self.mini.columns)
        return self

    def check_places(self, methods: Iterable[str], columns: Iterable[str]) -> None:
        """Raise a ValueError for a method or a column that the file does not define."""
        for method in methods:
            pick("method", method, self.method_names)
        for column in columns:
            pick("column", column, self.column_names)

    @property
    def method_names(self) -> tuple[str, ...]:
        return tuple(table.name for table in self.methods)

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(table.name for table in self.columns)

    # Methods that kinds override

    def metrics_in(self, column: str) -> tuple[str, str]:
        """Return the metric that is shown in a column, and the one by which its best configuration is chosen."""
        return self.metric, self.select_on

    def first_seeds(self, seeds: tuple[int, ...]) -> tuple[int, ...]:
        """Return the seeds of all configurations; only the chosen ones are trained with the others."""
        return seeds[:1]

    def make_cell(self, method: str, column: str, layer: Layer) -> Cell:
        return Cell(method, column, tuple(expand(layer)), tuple(key for key in varied_keys(layer) if key != "seed"))

    # From the file to a study

    def at(self, scale: str, methods: Names = (), columns: Names = (), changes: Changes = None) -> TrainingStudy:
        changes = dict(changes or {})
        mini = self.mini if scale == "mini" else MiniTraining()
        rows = _some("method", methods, mini.methods or self.method_names)
        places = _some("column", columns, mini.columns or self.column_names)
        wanted = changes.get("seed", mini.seeds or self.seeds)
        seeds = (wanted,) if isinstance(wanted, int) else tuple(wanted)
        upper = {**changes, "seed": list(self.first_seeds(seeds))}
        layers = {
            (row, place): _over(layer, upper)
            for place in places
            for row in rows
            if (layer := self._layer(row, place, scale)) is not None
        }
        if not layers:
            raise ValueError(f"{self.name} has no {', '.join(rows)} in {', '.join(places)}")
        return TrainingStudy(self, scale, changes, seeds, layers)

    def _layer(self, method: str, column: str, scale: str) -> Layer | None:
        """Return the keys and the grid of a method in a column, or None if the method is not in it."""
        rows = [table for table in self.methods if table.name == method and _applies(table.columns, column)]
        if not rows:
            return None
        cases = [c for c in self.cases if _applies(c.methods, method) and _applies(c.columns, column)]
        tables = [*(table for table in self.columns if table.name == column), *rows, *cases]
        layers = [self.layer, *(table.layer for table in tables)]
        if scale == "mini":
            layers += [self.mini.layer, *(table.mini.layer for table in tables)]
        return reduce(_over, layers)


def _over(lower: Layer, upper: Layer) -> Layer:
    """Merge two layers; the keys of ``upper`` win and come first, so that they vary slowest."""
    return upper | {key: value for key, value in lower.items() if key not in upper}


def varied_keys(layer: Layer) -> list[str]:
    """Return the keys with several values."""
    return [key for key, value in layer.items() if isinstance(value, list) and len(value) > 1]


def _applies(names: Sequence[str], name: str) -> bool:
    """True if a list of names includes a name; an empty list includes all."""
    return not names or name in names


def _some(what: str, wanted: Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    chosen = {pick(what, name, known) for name in wanted}
    return tuple(name for name in known if name in chosen) if wanted else known
