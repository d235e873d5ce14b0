"""From an experiment to configurations: what to train for each method in each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from borat.lab.config import RunConfig
from borat.lab.files import pick
from borat.lab.reproduce.spec import SCALES, Spec
from borat.lab.sweeps.grid import Layer, expand


@dataclass(frozen=True)
class Cell:
    """A method in a column of the table: what to train, with the first seed or, in a grid, with each."""

    method: str
    column: str
    configs: tuple[RunConfig, ...]
    varied: tuple[str, ...]
    """The keys that have several values, but for the seed."""
    default: RunConfig | None = None
    """In a scoreboard, the configuration with the learning rate that its authors advise."""


def plan(
    spec: Spec,
    scale: str = "full",
    *,
    methods: Sequence[str] = (),
    columns: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """The cells of an experiment, or of some of its methods and columns.

    ``changes`` replaces keys of every configuration; a list is a grid, but for the seed, see :func:`further_seeds`.
    """
    pick("scale", scale, SCALES)
    if spec.kind == "runtime":
        raise ValueError(f"{spec.name} measures run time and trains nothing")
    seeds = list(seeds_of(spec, scale, changes))
    last = _as_layer({**(changes or {}), "seed": seeds if spec.kind == "grid" else seeds[0]})
    cells = []
    for column in _some("column", columns, spec.column_names(scale)):
        for method in _some("method", methods, spec.method_names(scale)):
            layer = spec.layer(scale, method, column)
            if layer is None:
                continue
            layer = layer.under(last)
            varied = tuple(key for key, values in layer.grid.items() if len(values) > 1 and key != "seed")
            try:
                configs = tuple(expand(layer.settings, layer.grid))
                default = _default(layer) if spec.kind == "scoreboard" else None
            except ValueError as error:
                raise ValueError(f"{spec.name}, {method}, {column}: {error}") from error
            if default is not None:
                configs = tuple(dict.fromkeys((*configs, default)))
            cells.append(Cell(method, column, configs, varied, default))
    if not cells:
        raise ValueError(f"{spec.name} has no {', '.join(methods)} in {', '.join(columns)}")
    return cells


def _default(layer: Layer) -> RunConfig:
    settings, grid = ({k: v for k, v in part.items() if k != "lr"} for part in (layer.settings, layer.grid))
    if varied := [key for key, values in grid.items() if len(values) > 1]:
        raise ValueError(f"a scoreboard tries several values of lr only, got several of {', '.join(varied)}")
    return expand(settings, grid)[0]


def _some(what: str, wanted: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    chosen = {pick(what, name, known) for name in wanted}
    return [name for name in known if name in chosen] if wanted else known


def seeds_of(spec: Spec, scale: str, changes: Mapping[str, Any] | None = None) -> tuple[int, ...]:
    """The seeds of the configurations that are shown: in a grid all, else the chosen ones."""
    wanted = (changes or {}).get("seed", spec.seeds_at(scale))
    return (wanted,) if isinstance(wanted, int) else tuple(wanted)


def further_seeds(spec: Spec, scale: str, changes: Mapping[str, Any] | None = None) -> tuple[int, ...]:
    """Those that only the chosen configurations are trained with: none in a grid, where each is trained with all."""
    return () if spec.kind == "grid" else seeds_of(spec, scale, changes)[1:]


def _as_layer(changes: Mapping[str, Any]) -> Layer:
    grid = {key: value for key, value in changes.items() if isinstance(value, list)}
    return Layer({key: value for key, value in changes.items() if key not in grid}, grid)


def further_runs(spec: Spec, scale: str, cells: Sequence[Cell]) -> int:
    """How many runs the further seeds add, at most: a scoreboard repeats the defaults as well."""
    return len(further_seeds(spec, scale)) * len(cells) * (2 if spec.kind == "scoreboard" else 1)
