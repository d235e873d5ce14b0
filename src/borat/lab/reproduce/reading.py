"""The paper's experiments as files: one for each table and figure, read and checked.

A file holds the protocol, the published numbers and, in tables named ``mini``, what to change for two CPU cores:

    title, source, question, needs, protocol, notes    in words
    kind        "table" (the best configuration of each method), "grid" (all, with all seeds), "curves", "runtime", or
                "scoreboard" (each method at the learning rate its authors advise, and at the best of its grid)
    metric, select_on, seeds
    [base]      keys of a run's configuration
    [grid]      lists of values to try
    [[columns]] name, and keys and a grid of its own, such as the data set; in a scoreboard ``metric``, ``select_on``
    [[methods]] name as the paper has it, keys, a grid; ``columns`` if it is in some only; ``paper``, its row there
    [[cases]]   keys and a grid for some ``methods`` in some ``columns``
    [paper]     the published numbers by row and column; [marks] says what a sign after a row's name means
    [[claims]]  what the paper says of the results, see :class:`Claim`; a scoreboard has ``goal`` instead, the methods
                that should be as good at their defaults as the best that is tuned
    [mini]      base, grid, runtime, methods, columns, seeds, and ``differences`` in words
    [runtime]   what to time, see :class:`Runtime`

A column, a method and a case come one after the other over the base, and replace what was said before. At the mini
scale, the mini tables come over all of these, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from borat.lab.files import pick, read_mapping
from borat.lab.metrics import METRICS, unit
from borat.lab.reproduce.spec import KINDS, Claim, Published, Spec, SpecTable, layer_of
from borat.lab.timing.runtime import Runtime


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
    """From the tables of a file, whose columns, methods and cases mix their own keys with those of a configuration."""
    rest = dict(values)
    mini = dict(rest.pop("mini", {}))
    parts: dict[str, Any] = {
        "base": layer_of("base", rest.pop("base", {}), rest.pop("grid", {})),
        "columns": _tables(rest, "columns", ("name", "metric", "select_on")),
        "methods": _tables(rest, "methods", ("name", "columns", "paper")),
        "cases": _tables(rest, "cases", ("columns", "methods")),
        "mini": {"layer": layer_of("mini", mini.pop("base", {}), mini.pop("grid", {})), **mini},
    }
    for key in mini.get("runtime", {}):
        pick("key of mini.runtime", key, Runtime.model_fields)
    spec = Spec(**{**rest, **parts, "name": name})
    _check(spec)
    return spec if spec.kind == "runtime" else _in_shares(spec)


def _tables(values: dict[str, Any], name: str, own: tuple[str, ...]) -> tuple[SpecTable, ...]:
    tables = values.pop(name, [])
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


def _in_shares(spec: Spec) -> Spec:
    """The same with accuracies between 0 and 1 in place of percent."""
    factor = unit(spec.metric)
    paper = {
        row: {column: Published(mean=p.mean / factor, std=_over(p.std, factor)) for column, p in cells.items()}
        for row, cells in spec.paper.items()
    }
    return spec.model_copy(
        update={"paper": paper, "claims": tuple(_claim_in_shares(c, spec.metric) for c in spec.claims)}
    )


def _claim_in_shares(claim: Claim, metric: str) -> Claim:
    factor = 1.0 if claim.statistic == "usable" else unit(claim.metric or metric)
    bounds = {name: _over(getattr(claim, name), factor) for name in ("margin", "at_least", "at_most")}
    return claim.model_copy(update=bounds)


def _over(value: float | None, factor: float) -> float | None:
    return None if value is None else value / factor


def _check(spec: Spec) -> None:
    """Check that the parts of a file agree with each other."""
    pick("kind", spec.kind, KINDS)
    pick("metric", spec.metric, METRICS)
    pick("select_on", spec.select_on, METRICS)
    _check_scoreboard(spec)
    if (spec.kind == "runtime") != (spec.runtime is not None):
        raise ValueError("the kind runtime and the table [runtime] belong together")
    if not spec.seeds:
        raise ValueError("seeds must have at least one number")
    methods, columns = [table.name for table in spec.methods], [table.name for table in spec.columns]
    for name in (*methods, *columns):
        if not name or "," in name:
            raise ValueError(f"methods and columns need names without commas, got {name!r}")
    for table in (*spec.methods, *spec.cases):
        for column in table.columns:
            pick("column", column, columns)
        for method in table.methods:
            pick("method", method, methods)
    for name in (*spec.mini.methods, *spec.goal, *(name for claim in spec.claims for name in claim.names)):
        pick("method", name, methods)
    for name in (*spec.mini.columns, *(name for claim in spec.claims for name in claim.columns)):
        pick("column", name, columns)
    for table in spec.methods:
        if table.paper:
            pick("row of the paper", table.paper, spec.paper)
    for row in spec.paper.values():
        for name in row:
            pick("column of the paper", name, columns)


def _check_scoreboard(spec: Spec) -> None:
    """What only a scoreboard has, and what it cannot have: each method is compared with all others on all tasks."""
    is_one = spec.kind == "scoreboard"
    for column in spec.columns:
        for key in ("metric", "select_on"):
            if value := getattr(column, key):
                pick(f"{key} of {column.name}", value, METRICS)
                if not is_one:
                    raise ValueError(f"{column.name}: only a column of a scoreboard has its own {key}, got {value!r}")
    if spec.goal and not is_one:
        raise ValueError(f"goal is for a scoreboard, got {', '.join(spec.goal)} in a {spec.kind}")
    if is_one and (spec.paper or spec.claims):
        raise ValueError("a scoreboard has no paper and no claims, only a goal")
    for method in spec.methods if is_one else ():
        if method.columns:
            raise ValueError(f"{method.name} must be in all columns of a scoreboard, got {', '.join(method.columns)}")
