"""One frozen, typed description of a training run, from a file, from flags, or from Python, and of how it is done.

Everything that decides the outcome of a run is in the first, so that its digest names the run.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from borat.lab.files import read_mapping
from borat.lab.methods import METHODS

LOSSES = ("ce", "hinge", "smooth-hinge", "top5")
SCHEDULES = ("constant", "manual", "piecewise", "geometric", "cosine", "plateau")
PRECISIONS = ("32", "64", "bf16-mixed")
STRATEGIES = ("auto", "ddp", "fsdp")
ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a training run; the budget is in passes over the data, as in the paper."""

    data: str = "digits"
    label_noise: float = 0.0
    train_limit: int | None = None
    augment: bool = True
    train_split: str | None = None
    glove: str | None = None

    model: str = "mlp-128-128"
    dropout: float = 0.0
    loss: str = "ce"

    optimizer: str = "borat"
    bundle_size: int = 3
    lr: float = 0.1
    schedule: str = "constant"
    momentum: float = 0.9
    weight_decay: float = 0.0
    radius: float | None = None

    epochs: int = 10
    batch_size: int = 128
    seed: int = 0

    precision: str = "32"

    def __post_init__(self) -> None:
        _check_types(self)
        for name, allowed in (("loss", LOSSES), ("schedule", SCHEDULES), ("precision", PRECISIONS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name in ("epochs", "batch_size", "bundle_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "momentum", "weight_decay", "dropout", "label_noise"):
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        for name in ("momentum", "dropout"):
            if not getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be less than 1, got {getattr(self, name)}")
        if self.label_noise > 1.0:
            raise ValueError(f"label_noise must be at most 1, got {self.label_noise}")
        if self.radius is not None and not 0.0 < self.radius < math.inf:
            raise ValueError(f"radius must be positive or none, got {self.radius}")
        if self.weight_decay == math.inf:
            raise ValueError(f"weight_decay must be finite, got {self.weight_decay}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RunConfig:
        """Build a configuration, and reject keys that it does not have."""
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known keys are {', '.join(known)}"
                raise ValueError(f"unknown key {key!r}{hint}")
        return cls(**values)

    @classmethod
    def from_file(cls, path: Path) -> RunConfig:
        """Read a TOML or JSON file."""
        return cls.from_mapping(read_mapping(path))

    def replace(self, **changes: Any) -> RunConfig:
        return self.from_mapping({**self.as_dict(), **changes})

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def method(self) -> str:
        """The optimizer and its schedule as tables and figures call them."""
        name = f"BORAT{self.bundle_size}" if self.optimizer == "borat" else METHODS.get(self.optimizer, self.optimizer)
        return name if self.schedule == "constant" else f"{name}, {self.schedule}"

    @property
    def digest(self) -> str:
        """A short name for this configuration: the same on every machine."""
        text = json.dumps(self.as_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Execution:
    """Where and how to train. None of it belongs to the configuration of a run: none should change what comes out.

    Args:
        devices: how many processes, each with a device of its own; the batch is shared among them.
        strategy: ``"ddp"`` copies the model, ``"fsdp"`` spreads it (FSDP2); ``"auto"`` is DDP with several devices.
        accelerator: ``"cpu"``, ``"gpu"``, …; the best there is for ``"auto"``.
        compile: whether to compile the model.
        tensorboard: whether to write events for TensorBoard.
    """

    devices: int = 1
    strategy: str = "auto"
    accelerator: str = "auto"
    compile: bool = False
    tensorboard: bool = True

    def __post_init__(self) -> None:
        from borat.checks import check_count, check_flag  # with PyTorch, which a mistake in a command need not wait for

        check_count("devices", self.devices)
        check_flag("compile", self.compile)
        check_flag("tensorboard", self.tensorboard)
        for name, allowed in (("strategy", STRATEGIES), ("accelerator", ACCELERATORS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def _check_types(config: RunConfig) -> None:
    """Check each field against its annotation; a whole number will do where a real one is wanted."""
    for name, options in _allowed_types().items():
        value = getattr(config, name)
        if float in options and isinstance(value, int) and not isinstance(value, bool):
            object.__setattr__(config, name, float(value))
        elif not any(_is(value, option) for option in options):
            wanted = " or ".join("none" if o is types.NoneType else o.__name__ for o in options)
            raise ValueError(f"{name} must be of type {wanted}, got {value!r}")


@cache
def _allowed_types() -> dict[str, tuple[type, ...]]:
    """For each field; to read annotations takes long, and a sweep makes many configurations."""
    hints = typing.get_type_hints(RunConfig)
    return {name: typing.get_args(hint) or (hint,) for name, hint in hints.items()}


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
