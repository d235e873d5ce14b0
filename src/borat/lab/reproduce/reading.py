"""The paper's experiments as files: one for each table and figure, read and checked.

A file holds the protocol, the published numbers and, in tables named ``mini``, what to change for two CPU cores:

    title, source, question, needs, protocol, notes    in words
    kind        "table" (the best configuration of each method), "grid" (all of them), "curves", or "runtime"
    metric, select_on, seeds
    [base]      keys of a run's configuration
    [grid]      lists of values to try
    [[columns]] name, and keys and a grid of its own, such as the data set
    [[methods]] name as the paper has it, keys, a grid; ``columns`` if it is in some only; ``paper``, its row there
    [[cases]]   keys and a grid for some ``methods`` in some ``columns``
    [paper]     the published numbers by row and column; [marks] says what a sign after a row's name means
    [[claims]]  what the paper says of the results, see :class:`Claim`
    [mini]      base, grid, runtime, methods, columns, seeds, and ``differences`` in words
    [runtime]   what to time, see :class:`Runtime`

A column, a method and a case come one after the other over the base, and replace what was said before. At the mini
scale, the mini tables come over all of these, in the same order.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from borat.lab.files import pick, read_mapping
from borat.lab.reproduce.spec import (
    KEYS,
    KINDS,
    METRICS,
    STATISTICS,
    Claim,
    Entry,
    Layer,
    Mini,
    Published,
    Runtime,
    Spec,
)

T = TypeVar("T")


def experiments_folder() -> Path:
    """The files of the installed package, or those of the repository."""
    here = Path(__file__).resolve()
    for place in (here.parents[1] / "experiments", here.parents[4] / "experiments"):
        if place.is_dir():
            return place
    raise ValueError("the folder experiments/ is neither in the package nor in a repository around it")


def spec_names() -> list[str]:
    return sorted(path.stem for path in experiments_folder().glob("*.toml"))


def load_spec(name: str) -> Spec:
    """An experiment by its name, or from a file of one's own."""
    path = Path(name)
    if path.suffix != ".toml":
        pick("experiment", name, spec_names())
        path = experiments_folder() / f"{name}.toml"
    return read_spec(path)


def read_spec(path: Path) -> Spec:
    """Read a file, and reject what does not belong in it."""
    values = read_mapping(path)
    try:
        return _spec(path.stem, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _spec(name: str, values: dict[str, Any]) -> Spec:
    values = dict(values)
    parts: dict[str, Any] = {
        "name": name,
        "base": _layer("base", values.pop("base", {}), values.pop("grid", {})),
        "columns": tuple(_entry("columns", entry, ("name",)) for entry in _tables(values, "columns")),
        "methods": tuple(
            _entry("methods", entry, ("name", "columns", "paper")) for entry in _tables(values, "methods")
        ),
        "cases": tuple(_entry("cases", entry, ("columns", "methods")) for entry in _tables(values, "cases")),
        "paper": _published(values.pop("paper", {})),
        "claims": tuple(_claim(claim) for claim in _tables(values, "claims")),
        "mini": _mini(values.pop("mini", {})),
    }
    if "runtime" in values:
        parts["runtime"] = _build(Runtime, "runtime", values.pop("runtime"))
    spec = _build(Spec, "the experiment", {**values, **parts})
    _check(spec)
    return spec


def _tables(values: dict[str, Any], name: str) -> list[Mapping[str, Any]]:
    tables = values.pop(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError(f"{name} must be tables [[{name}]], got {tables!r}")
    return tables


def _build(kind: type[T], where: str, values: Mapping[str, Any]) -> T:
    """A dataclass from a table; lists become tuples."""
    hints = typing.get_type_hints(kind)
    for key, value in values.items():
        pick(f"key of {where}", key, hints)
        for plain, accepted in ((str, str), (int, int), (float, (int, float))):
            if hints[key] is plain and (not isinstance(value, accepted) or isinstance(value, bool)):
                raise ValueError(f"{key} of {where} must be of type {plain.__name__}, got {value!r}")
        if typing.get_origin(hints[key]) is tuple and not isinstance(value, list | tuple):
            raise ValueError(f"{key} of {where} must be a list, got {value!r}")
    try:
        return kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()})
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error


def _layer(where: str, settings: Mapping[str, Any], grid: Mapping[str, Any]) -> Layer:
    for key in (*settings, *grid):
        pick(f"key of {where}", key, KEYS)
    for key, options in grid.items():
        if not isinstance(options, list) or not options:
            raise ValueError(f"{where}: grid.{key} must be a list of values, got {options!r}")
    return Layer(dict(settings), dict(grid))


def _entry(where: str, values: Mapping[str, Any], own: tuple[str, ...]) -> Entry:
    where = f"{where}, {values['name']}" if "name" in values else where
    rest = {key: value for key, value in values.items() if key not in own}
    mini = dict(rest.pop("mini", {}))
    grid, mini_grid = rest.pop("grid", {}), mini.pop("grid", {})
    found: dict[str, Any] = {key: values[key] for key in own if key in values}
    found = {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}
    return Entry(_layer(where, rest, grid), _layer(where, mini, mini_grid), **found)


def _mini(values: Mapping[str, Any]) -> Mini:
    rest = dict(values)
    layer = _layer("mini", rest.pop("base", {}), rest.pop("grid", {}))
    for key in rest.get("runtime", {}):
        pick("key of mini.runtime", key, [f.name for f in dataclasses.fields(Runtime)])
    return _build(Mini, "mini", {**rest, "layer": layer})


def _published(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Published]]:
    def number(value: Any) -> Published:
        return _build(Published, "paper", value) if isinstance(value, dict) else Published(float(value))

    return {row: {column: number(value) for column, value in cells.items()} for row, cells in rows.items()}


def _claim(values: Mapping[str, Any]) -> Claim:
    order = tuple((group,) if isinstance(group, str) else tuple(group) for group in values.get("order", []))
    claim = _build(Claim, "claims", {**values, "order": order})
    pick("statistic", claim.statistic, STATISTICS)
    if claim.metric:
        pick("metric", claim.metric, METRICS)
    if claim.epoch < 0 or ((claim.epoch or claim.metric) and claim.statistic != "value"):
        raise ValueError(f"the claim {claim.text!r} needs the statistic value and an epoch from 1 on")
    if not (len(order) > 1 or (claim.methods and (claim.at_least is not None or claim.at_most is not None))):
        raise ValueError(f"the claim {claim.text!r} needs an order, or methods and a bound")
    return claim


def _check(spec: Spec) -> None:
    """Check that the parts of a file agree with each other."""
    pick("kind", spec.kind, KINDS)
    pick("metric", spec.metric, METRICS)
    pick("select_on", spec.select_on, METRICS)
    if (spec.kind == "runtime") != (spec.runtime is not None):
        raise ValueError("the kind runtime and the table [runtime] belong together")
    if not spec.seeds:
        raise ValueError("seeds must have at least one number")
    methods, columns = [entry.name for entry in spec.methods], [entry.name for entry in spec.columns]
    for name in (*methods, *columns):
        if not name or "," in name:
            raise ValueError(f"methods and columns need names without commas, got {name!r}")
    for entry in (*spec.methods, *spec.cases):
        for column in entry.columns:
            pick("column", column, columns)
        for method in entry.methods:
            pick("method", method, methods)
    for name in (*spec.mini.methods, *(name for claim in spec.claims for name in claim.names)):
        pick("method", name, methods)
    for name in (*spec.mini.columns, *(name for claim in spec.claims for name in claim.columns)):
        pick("column", name, columns)
    for entry in spec.methods:
        if entry.paper:
            pick("row of the paper", entry.paper, spec.paper)
    for row in spec.paper.values():
        for name in row:
            pick("column of the paper", name, columns)
