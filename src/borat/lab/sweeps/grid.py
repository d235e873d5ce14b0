"""Grids of values: every combination becomes a configuration, each once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from borat.lab.config import RunConfig
from borat.lab.methods import METHODS
from borat.lab.strict import explain_flag

Grid = Mapping[str, Sequence[Any]]
"""Values of each key."""


def expand(values: Mapping[str, Any]) -> list[RunConfig]:
    """Return the configurations of all points of a grid, in order and without duplicates.

    Each key has a value, or a list of values to try. The string ``"none"`` stands for None, which TOML cannot express.
    Configurations that differ only in a key without effect are duplicates.

    >>> [(c.method, c.lr) for c in expand({"epochs": 2, "optimizer": ["sgd", "borat"], "lr": [0.1, 1]})]
    [('SGD', 0.1), ('SGD', 1.0), ('BORAT3', 0.1), ('BORAT3', 1.0)]
    """
    grid = {key: value if isinstance(value, list | tuple) else [value] for key, value in values.items()}
    configs = []
    for point in combinations(grid):
        given: dict[str, Any] = {k: None if v == "none" and _may_be_none(k) else v for k, v in point.items()}
        config = RunConfig(**given)
        ignores_size = config.optimizer in METHODS and "bundle_size" not in METHODS[config.optimizer].takes
        configs.append(config.replace(bundle_size=RunConfig().bundle_size) if ignores_size else config)
    return list(dict.fromkeys(configs))


def combinations(grid: Grid) -> Iterator[dict[str, Any]]:
    """Yield the points of the grid; the last key changes fastest. Lists may be NumPy arrays."""
    grid = {key: values.tolist() if hasattr(values, "tolist") else values for key, values in grid.items()}
    for key, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise ValueError(f"{key} must be a list of values in a grid, got {values!r}")
        if not values:
            raise ValueError(f"{key} must have at least one value in a grid, got an empty list")
    for point in itertools.product(*grid.values()):
        yield {key: x.item() if hasattr(x, "item") else x for key, x in zip(grid, point, strict=True)}


def _may_be_none(key: str) -> bool:
    return key in RunConfig.model_fields and NoneType in get_args(RunConfig.model_fields[key].annotation)


def parse_value(key: str, text: str) -> Any:
    """Parse the value of a flag.

    >>> parse_value("lr", "0.1"), parse_value("radius", "none"), parse_value("augment", "yes")
    (0.1, None, True)
    """
    if text.lower() == "none" and _may_be_none(key):
        return None
    try:
        return TypeAdapter[Any](RunConfig.model_fields[key].annotation).validate_python(text)  # type: ignore[arg-type]
    except ValidationError as error:
        raise ValueError(f"{key} {explain_flag(error)}") from None


def parse_values(key: str, text: str) -> list[Any]:
    """Parse values that are separated by commas."""
    return [parse_value(key, item.strip()) for item in text.split(",")]
