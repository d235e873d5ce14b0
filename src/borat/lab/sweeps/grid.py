"""From a grid to configurations: every combination, each once."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from borat.lab.config import RunConfig
from borat.lab.files import read_mapping

Grid = Mapping[str, Sequence[Any]]
"""The values of each key."""

YES_OR_NO = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def expand(base: Mapping[str, Any], grid: Grid, methods: Sequence[Mapping[str, Any]] = ()) -> list[RunConfig]:
    """All combinations of the grid's values for each method, in order and without duplicates.

    A method is a mapping of keys, with a ``grid`` of its own if it needs one. What is more special wins: a method's
    grid before its keys, these before the common grid, that before the base. The word ``none`` stands for no value,
    which TOML cannot write. Configurations that differ only in a key without effect are duplicates.

    >>> methods = [{"optimizer": "sgd"}, {"optimizer": "borat", "grid": {"bundle_size": [3, 5]}}]
    >>> [(c.method, c.lr) for c in expand({"epochs": 2}, {"lr": [0.1, 1]}, methods)]
    [('SGD', 0.1), ('SGD', 1.0), ('BORAT3', 0.1), ('BORAT3', 1.0), ('BORAT5', 0.1), ('BORAT5', 1.0)]
    """
    configs: dict[RunConfig, None] = {}
    for method in methods or [{}]:
        keys = {key: value for key, value in method.items() if key != "grid"}
        own: Grid = method.get("grid", {})
        common = {key: values for key, values in grid.items() if key not in keys and key not in own}
        for point in combinations({**own, **common}):
            configs[_canonical({**base, **keys, **point})] = None
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
    config = RunConfig.from_mapping({key: _value(key, value) for key, value in values.items()})
    return config if config.optimizer == "borat" else config.replace(bundle_size=RunConfig.bundle_size)


def _value(key: str, value: Any) -> Any:
    return None if value == "none" and type(None) in _types(key) else value


def _types(key: str) -> tuple[type, ...]:
    hint = typing.get_type_hints(RunConfig)[key] if key in RunConfig.__dataclass_fields__ else str
    return typing.get_args(hint) or (hint,)


@dataclass(frozen=True)
class Spec:
    """A sweep as a file describes it: the tables ``base``, ``grid`` and ``methods``."""

    base: Mapping[str, Any] = field(default_factory=dict)
    grid: Grid = field(default_factory=dict)
    methods: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def from_file(cls, path: Path) -> Spec:
        """Read a TOML or JSON file."""
        values = read_mapping(path)
        known = [field.name for field in dataclasses.fields(cls)]
        for key, value in values.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean [{near[0]}]?" if near else "known are [base], [grid] and [[methods]]"
                raise ValueError(f"unknown table {key!r} in {path}; {hint}")
            kind, written = (list, "tables [[methods]]") if key == "methods" else (dict, f"a table [{key}]")
            if not isinstance(value, kind):
                raise ValueError(f"{key} in {path} must be {written}, got {value!r}")
        for method in values.get("methods", []):
            if not isinstance(method, dict) or not isinstance(method.get("grid", {}), dict):
                raise ValueError(f"methods in {path} must be tables [[methods]] of keys and a grid, got {method!r}")
        return cls(**values)

    def override(self, grid: Grid) -> Spec:
        """The same with these values wherever their keys are given."""

        def without(values: Mapping[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in values.items() if key not in grid}

        methods = [{**without(method), "grid": without(method.get("grid", {}))} for method in self.methods]
        return Spec(without(self.base), {**without(self.grid), **grid}, methods)

    def configs(self) -> list[RunConfig]:
        return expand(self.base, self.grid, self.methods)


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
