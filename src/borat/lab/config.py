"""One frozen, typed description of a training run, from a file, from flags, or from Python, and of how it is done.

Everything that decides the outcome of a run is in the first, so that its digest names the run.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path, PurePath
from typing import Any, Self

from pydantic import model_validator

from borat.lab.files import pick, read_mapping
from borat.lab.methods import METHODS, label_of
from borat.lab.strict import StrictModel

LOSSES = ("ce", "hinge", "smooth-hinge", "top5")
SCHEDULES = (
    "constant",
    "manual",
    "piecewise",
    "geometric",
    "cosine",
    "one-cosine",
    "warmup",
    "warmup-cosine",
    "plateau",
)
PRECISIONS = ("32", "64", "bf16-mixed")
STRATEGIES = ("auto", "ddp", "fsdp")
ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")
OF_TASKS = ("task", "steps", "shift", "clip")
TAKEN_BY_TASKS = ("optimizer", "bundle_size", "lr", "schedule", "momentum", "weight_decay", "radius", "seed")
"""Keys of other runs that a task takes, too."""


class RunConfig(StrictModel):
    """The configuration of a training run; the budget is in passes over the data, as in the paper."""

    data: str = "digits"
    label_noise: float = 0.0
    train_limit: int | None = None
    validation_size: int | None = None
    augment: bool = True
    train_split: str | None = None
    glove: str | None = None
    image_size: int | None = None
    image_column: str | None = None
    label_column: str | None = None
    window: int | None = None

    model: str = "mlp-128-128"
    dropout: float = 0.0
    loss: str = "ce"

    optimizer: str = "borat"
    bundle_size: int = 3
    lr: float = 0.1
    """Without it, what the authors of the optimizer advise."""
    schedule: str = "constant"
    momentum: float = 0.9
    weight_decay: float = 0.0
    radius: float | None = None

    epochs: int = 10
    batch_size: int = 128
    seed: int = 0

    precision: str = "32"

    task: str | None = None
    """A task of :mod:`borat.lab.tasks`, in place of data, a model, a loss and a number of epochs."""
    steps: int | None = None
    """Batches of a task's run; the task's own number without it."""
    shift: float | None = None
    """Added to a task's losses."""
    clip: float | None = None
    """Largest norm of a task's gradients."""

    @model_validator(mode="before")
    @classmethod
    def _advised_lr(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        method = METHODS.get(values.get("optimizer", "borat"))
        return ({"lr": method.lr} if method else {}) | ({"epochs": 1} if values.get("task") else {}) | values

    @model_validator(mode="after")
    def _check_ranges(self) -> Self:
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
        self._check_task()
        return self

    def _check_task(self) -> None:
        """Refuse keys that would be ignored."""
        if self.task is None:
            refused = dict.fromkeys(OF_TASKS)
        else:
            refused = {key: field.default for key, field in type(self).model_fields.items()} | {"epochs": 1}
            refused = {key: value for key, value in refused.items() if key not in (*TAKEN_BY_TASKS, *OF_TASKS)}
        for key, usual in refused.items():
            if getattr(self, key) != usual:
                raise ValueError(
                    f"{key} {'does not apply to' if self.task else 'needs'} a task, got {getattr(self, key)!r}"
                )
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if self.shift is not None and not math.isfinite(self.shift):
            raise ValueError(f"shift must be finite, got {self.shift}")
        if self.clip is not None and not self.clip > 0.0:
            raise ValueError(f"clip must be positive, got {self.clip}")

    @classmethod
    def from_file(cls, path: Path) -> RunConfig:
        """Read a TOML or JSON file."""
        return cls(**read_mapping(path))

    def replace(self, **changes: Any) -> RunConfig:
        return RunConfig(**{**self.as_dict(), **changes})

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump()

    @property
    def method(self) -> str:
        """The optimizer and its schedule as tables and figures call them."""
        return label_of(self.optimizer, self.bundle_size, self.schedule)

    @property
    def identity(self) -> dict[str, Any]:
        """Keys that decide the outcome; of a file of word vectors, only the name."""
        return {**self.as_dict(), "glove": self.glove and PurePath(self.glove).name}

    @property
    def digest(self) -> str:
        """Short name of this configuration, the same on every machine."""
        text = json.dumps(self.identity, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def check_method(config: RunConfig) -> None:
    """Raise a ValueError for an optimizer that is not there, or that cannot have this loss."""
    allowed = METHODS[pick("optimizer", config.optimizer, METHODS)].losses or LOSSES
    if config.loss not in allowed:
        raise ValueError(f"loss must be {' or '.join(allowed)} for {config.optimizer}, got {config.loss!r}")


class Execution(StrictModel):
    """Devices and other means of training. They should not change the result, and are no part of a configuration.

    Attributes:
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

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.devices < 1:
            raise ValueError(f"devices must be an integer of at least 1, got {self.devices}")
        for name, allowed in (("strategy", STRATEGIES), ("accelerator", ACCELERATORS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        return self

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump()
