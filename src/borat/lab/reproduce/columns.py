"""Experiments that train methods in columns: the configurations of each, at both scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar, Self

from pydantic import model_validator

from borat.lab.config import RunConfig
from borat.lab.files import pick
from borat.lab.metrics import METRICS
from borat.lab.reproduce.spec import Cell, Mini, Names, Spec, Study
from borat.lab.strict import Listed, StrictModel
from borat.lab.sweeps.grid import Layer, expand


class SpecTable(StrictModel):
    """A column, a method or a case: its name, where it applies, and the keys that it sets."""

    full: Layer
    mini: Layer
    name: str = ""
    columns: Listed[str] = ()
    """Those it is in; all if empty."""
    methods: Listed[str] = ()
    metric: str = ""
    """The metric of a scoreboard's column, and ``select_on`` the one to choose by, if not the common ones."""
    select_on: str = ""
    paper: str = ""
    """The row of the paper's table that a method is compared with."""

    def covers(self, method: str, column: str) -> bool:
        return (not self.columns or column in self.columns) and (not self.methods or method in self.methods)


class MiniColumns(Mini):
    """Changes of the mini scale where methods are trained in columns."""

    layer: Layer = Layer()
    methods: Listed[str] = ()
    columns: Listed[str] = ()
    seeds: Listed[int] = ()


class ColumnsSpec(Spec):
    """An experiment that trains methods in columns."""

    own_keys: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "columns": ("name",),
        "methods": ("name", "columns", "paper"),
        "cases": ("columns", "methods"),
    }
    """Keys of the tables in a file that are none of a configuration."""

    metric: str = "test_accuracy"
    select_on: str = "validation_accuracy"
    seeds: Listed[int] = (0,)
    base: Layer = Layer()
    columns: Listed[SpecTable] = ()
    methods: Listed[SpecTable] = ()
    cases: Listed[SpecTable] = ()
    mini: MiniColumns = MiniColumns()

    @classmethod
    def from_tables(cls, name: str, values: Mapping[str, Any]) -> Self:
        rest = dict(values)
        mini = dict(rest.pop("mini", {}))
        rest["base"] = layer_of("base", rest.get("base", {}), rest.pop("grid", {}))
        rest["mini"] = {"layer": layer_of("mini", mini.pop("base", {}), mini.pop("grid", {})), **mini}
        for key, own in cls.own_keys.items():
            rest[key] = _tables(key, rest.get(key, []), own)
        return super().from_tables(name, rest)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        pick("metric", self.metric, METRICS)
        pick("select_on", self.select_on, METRICS)
        if not self.seeds:
            raise ValueError("seeds must have at least one number")
        methods, columns = ([table.name for table in tables] for tables in (self.methods, self.columns))
        for name in (*methods, *columns):
            if not name or "," in name:
                raise ValueError(f"methods and columns need names without commas, got {name!r}")
        places = [(table.methods, table.columns) for table in (*self.methods, *self.cases)]
        for rows, names in (*places, (self.mini.methods, self.mini.columns)):
            for method in rows:
                pick("method", method, methods)
            for column in names:
                pick("column", column, columns)
        return self

    # Hooks for kinds

    def metric_in(self, column: str) -> str:
        """Return the metric that is shown in a column."""
        return self.metric

    def select_on_in(self, column: str) -> str:
        """Return the metric by which the best configuration of a column is chosen."""
        return self.select_on

    def first_seeds(self, seeds: tuple[int, ...]) -> tuple[int, ...]:
        """Return the seeds of all configurations; the chosen ones are trained with the others, too."""
        return seeds[:1]

    def make_cell(self, method: str, column: str, layer: Layer) -> Cell:
        varied = tuple(key for key, values in layer.grid.items() if len(values) > 1 and key != "seed")
        return Cell(method, column, tuple(expand(layer.fixed, layer.grid)), varied)

    # What to train

    def study(self, scale: str, methods: Names, columns: Names, changes: dict[str, Any]) -> Study:
        mini = scale == "mini"
        rows = _some("method", methods, (mini and self.mini.methods) or tuple(table.name for table in self.methods))
        places = _some("column", columns, (mini and self.mini.columns) or tuple(table.name for table in self.columns))
        wanted = changes.get("seed", (mini and self.mini.seeds) or self.seeds)
        seeds = (wanted,) if isinstance(wanted, int) else tuple(wanted)
        first = list(self.first_seeds(seeds))
        last = _as_layer({**changes, "seed": first if len(first) > 1 else first[0]})
        layers = {
            (row, place): layer.under(last)
            for place in places
            for row in rows
            if (layer := self._layer(row, place, mini=mini)) is not None
        }
        if not layers:
            raise ValueError(f"{self.name} has no {', '.join(rows)} in {', '.join(places)}")
        return Study(self, scale, seeds, layers, changes)

    def _layer(self, method: str, column: str, *, mini: bool) -> Layer | None:
        """Return the keys and the grid of a method in a column, or None if it is not in it."""
        tables = [table for table in self.columns if table.name == column]
        own = [table for table in self.methods if table.name == method and table.covers(method, column)]
        if not own:
            return None
        tables += own + [case for case in self.cases if case.covers(method, column)]
        layers = [table.full for table in tables]
        if mini:
            layers += [self.mini.layer, *(table.mini for table in tables)]
        return reduce(Layer.under, layers, self.base)

    def plan(self, study: Study) -> list[Cell]:
        cells = []
        for (method, column), layer in study.layers.items():
            try:
                cells.append(self.make_cell(method, column, layer))
            except ValueError as error:
                raise ValueError(f"{self.name}, {method}, {column}: {error}") from error
        return cells

    def further_seeds(self, study: Study) -> tuple[int, ...]:
        """Return the seeds that only the chosen configurations are trained with."""
        return study.seeds[len(self.first_seeds(study.seeds)) :]

    def size(self, study: Study) -> str:
        cells = self.plan(study)
        first = sum(len(cell.configs) for cell in cells)
        again = len(self.further_seeds(study)) * sum(1 + (cell.default is not None) for cell in cells)
        return f"{first + again:,} runs"


def _some(what: str, wanted: Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    chosen = {pick(what, name, known) for name in wanted}
    return tuple(name for name in known if name in chosen) if wanted else known


def _as_layer(changes: Mapping[str, Any]) -> Layer:
    grid = {key: value for key, value in changes.items() if isinstance(value, list)}
    return Layer({key: value for key, value in changes.items() if key not in grid}, grid)


def layer_of(where: str, fixed: Mapping[str, Any], grid: Mapping[str, Any]) -> Layer:
    """Return keys of a configuration and lists of values as a layer, checked."""
    for key in (*fixed, *grid):
        pick(f"key of {where}", key, RunConfig.model_fields)
    for key, options in grid.items():
        if not isinstance(options, list) or not options:
            raise ValueError(f"{where}: grid.{key} must be a list of values, got {options!r}")
    return Layer(dict(fixed), dict(grid))


def _tables(name: str, tables: Any, own: tuple[str, ...]) -> tuple[SpecTable, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError(f"{name} must be tables [[{name}]], got {tables!r}")
    return tuple(_table(name, table, own) for table in tables)


def _table(where: str, values: Mapping[str, Any], own: tuple[str, ...]) -> SpecTable:
    where = f"{where}, {values['name']}" if "name" in values else where
    rest = {key: value for key, value in values.items() if key not in own}
    mini = dict(rest.pop("mini", {}))
    grid, mini_grid = rest.pop("grid", {}), mini.pop("grid", {})
    found = {key: values[key] for key in own if key in values}
    return SpecTable(full=layer_of(where, rest, grid), mini=layer_of(where, mini, mini_grid), **found)
