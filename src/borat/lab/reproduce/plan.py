"""From an experiment to configurations: what to train for each method in each column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from borat.lab.config import RunConfig
from borat.lab.reproduce.spec import Study
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


def plan(study: Study) -> list[Cell]:
    """The cells of an experiment at a scale."""
    spec, cells = study.spec, []
    if spec.kind == "runtime":
        raise ValueError(f"{spec.name} measures run time and trains nothing")
    for (method, column), layer in study.layers.items():
        varied = tuple(key for key, values in layer.grid.items() if len(values) > 1 and key != "seed")
        try:
            configs = tuple(expand(layer.settings, layer.grid))
            default = _default(layer) if spec.kind == "scoreboard" else None
        except ValueError as error:
            raise ValueError(f"{spec.name}, {method}, {column}: {error}") from error
        if default is not None:
            configs = tuple(dict.fromkeys((*configs, default)))
        cells.append(Cell(method, column, configs, varied, default))
    return cells


def _default(layer: Layer) -> RunConfig:
    settings, grid = ({k: v for k, v in part.items() if k != "lr"} for part in (layer.settings, layer.grid))
    if varied := [key for key, values in grid.items() if len(values) > 1]:
        raise ValueError(f"a scoreboard tries several values of lr only, got several of {', '.join(varied)}")
    return expand(settings, grid)[0]


def further_runs(study: Study, cells: Sequence[Cell]) -> int:
    """How many runs the further seeds add, at most: a scoreboard repeats the defaults as well."""
    return len(study.further_seeds) * len(cells) * (2 if study.spec.kind == "scoreboard" else 1)
