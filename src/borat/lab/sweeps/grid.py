"""From a grid to configurations: every combination, each once."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from borat.lab.config import RunConfig
from borat.lab.files import read_mapping
from borat.lab.methods import METHODS
from borat.lab.strict import Listed, StrictModel

Grid = Mapping[str, Sequence[Any]]
"""The values of each key."""

YES_OR_NO = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class Layer:
    """Keys of a configuration with one value, and keys with several to try."""

    fixed: Mapping[str, Any] = field(default_factory=dict)
    grid: Grid = field(default_factory=dict)

    @classmethod
    def of_table(cls, table: Mapping[str, Any]) -> Layer:
        """Keys, with a ``grid`` of its own if it needs one."""
        return cls({key: value for key, value in table.items() if key != "grid"}, table.get("grid", {}))

    def under(self, upper: Layer) -> Layer:
        """This layer with another one over it: what is more special wins.

        From strong to weak: the upper layer's grid, its fixed keys, the lower layer's grid, its fixed keys.
        """
        kept = {key: values for key, values in self.grid.items() if key not in (*upper.fixed, *upper.grid)}
        return Layer({**self.fixed, **upper.fixed}, {**upper.grid, **kept})


def expand(
    base: Mapping[str, Any], grid: Grid, methods: Sequence[Mapping[str, Any]] = (), changes: Grid | None = None
) -> list[RunConfig]:
    """All combinations of the grid's values for each method, in order and without duplicates.

    A method is a mapping of keys, with a ``grid`` of its own if it needs one, and a layer over the base and the common
    grid; ``changes`` are a layer over all of these. The word ``none`` stands for no value, which TOML cannot write.
    Configurations that differ only in a key without effect are duplicates.

    >>> methods = [{"optimizer": "sgd"}, {"optimizer": "borat", "grid": {"bundle_size": [3, 5]}}]
    >>> [(c.method, c.lr) for c in expand({"epochs": 2}, {"lr": [0.1, 1]}, methods)]
    [('SGD', 0.1), ('SGD', 1.0), ('BORAT3', 0.1), ('BORAT3', 1.0), ('BORAT5', 0.1), ('BORAT5', 1.0)]
    """
    configs: dict[RunConfig, None] = {}
    for method in methods or [{}]:
        layer = Layer(base, grid).under(Layer.of_table(method)).under(Layer(grid=changes or {}))
        for point in combinations(layer.grid):
            configs[_canonical({**layer.fixed, **point})] = None
    return list(configs)


def combinations(grid: Grid) -> Iterator[dict[str, Any]]:
    """The grid's points; the last key changes fastest. Arrays of NumPy will do for lists."""
    grid = {key: values.tolist() if hasattr(values, "tolist") else values for key, values in grid.items()}
    for key, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise ValueError(f"{key} must be a list of values in a grid, got {values!r}")
        if not values:
            raise ValueError(f"{key} must have at least one value in a grid, got an empty list")
    for point in itertools.product(*grid.values()):
        yield {key: x.item() if hasattr(x, "item") else x for key, x in zip(grid, point, strict=True)}


def _canonical(values: Mapping[str, Any]) -> RunConfig:
    """One configuration for all that train the same."""
    config = RunConfig(**{key: _value(key, value) for key, value in values.items()})
    takes = METHODS[config.optimizer].takes if config.optimizer in METHODS else {"bundle_size": ""}
    return config if "bundle_size" in takes else config.replace(bundle_size=RunConfig().bundle_size)


def _value(key: str, value: Any) -> Any:
    return None if value == "none" and type(None) in _types(key) else value


def _types(key: str) -> tuple[type, ...]:
    hint = RunConfig.model_fields[key].annotation if key in RunConfig.model_fields else str
    return typing.get_args(hint) or (hint,)


class SweepFile(StrictModel):
    """A sweep as a file describes it: the tables ``base``, ``grid`` and ``methods``."""

    base: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, Any] = Field(default_factory=dict)
    methods: Listed[dict[str, Any]] = ()

    @classmethod
    def from_file(cls, path: Path) -> SweepFile:
        """Read a TOML or JSON file."""
        try:
            return cls(**read_mapping(path))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @model_validator(mode="after")
    def _check_grids(self) -> Self:
        for method in self.methods:
            if not isinstance(method.get("grid", {}), dict):
                raise ValueError(f"methods must be tables of keys and a grid, got {method!r}")
        return self

    def configs(self, changes: Grid | None = None) -> list[RunConfig]:
        return expand(self.base, self.grid, self.methods, changes)


def parse_values(key: str, text: str) -> list[Any]:
    """The values of a key in a list with commas.

    >>> parse_values("lr", "0.1,1"), parse_values("radius", "none,50"), parse_values("augment", "yes,no")
    ([0.1, 1.0], [None, 50.0], [True, False])
    """
    return [_parse(key, item.strip()) for item in text.split(",")]


def _parse(key: str, text: str) -> Any:
    if text.lower() == "none" and type(None) in _types(key):
        return None
    kind = _types(key)[0]
    try:
        return YES_OR_NO[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise ValueError(
            f"{key} must be of type {kind.__name__}, or a list of such with commas, got {text!r}"
        ) from None
