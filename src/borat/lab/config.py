"""Frozen, typed descriptions of a training run and of its execution, from a file, from flags or from Python."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePath
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from borat.lab.files import pick
from borat.lab.methods import METHODS, label_of
from borat.lab.strict import StrictModel, one_of

LOSSES = ("ce", "hinge", "smooth-hinge", "top5")
BATCH_SCHEDULES = ("constant", "cosine", "one-cosine", "warmup", "warmup-cosine")
"""Schedules that change the learning rate after batches rather than epochs; tasks take no others."""
SCHEDULES = (*BATCH_SCHEDULES, "manual", "piecewise", "geometric", "plateau")
TASK_KEYS = ("task", "steps", "shift", "clip")
"""Keys for tasks only."""
SHARED_KEYS = ("optimizer", "bundle_size", "lr", "schedule", "momentum", "weight_decay", "radius", "seed")
"""Keys for tasks and for other runs."""

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Coefficient = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RunConfig(StrictModel):
    """The configuration of a training run: everything that decides its outcome, so that its digest names the run.

    The budget is in passes over the data, as in the paper.
    """

    data: str = "digits"
    label_noise: Annotated[float, Field(ge=0, le=1)] = 0.0
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
    dropout: Fraction = 0.0
    loss: Annotated[str, one_of(*LOSSES)] = "ce"

    optimizer: str = "borat"
    bundle_size: Count = 3
    lr: Coefficient = 0.1
    """The learning rate; by default the one that the optimizer's authors advise."""
    schedule: Annotated[str, one_of(*SCHEDULES)] = "constant"
    momentum: Fraction = 0.9
    weight_decay: Coefficient = 0.0
    radius: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None

    epochs: Count = 10
    batch_size: Count = 128
    seed: int = 0

    precision: Annotated[str, one_of("32", "64", "bf16-mixed")] = "32"

    task: str | None = None
    """A task of :mod:`borat.lab.tasks`, in place of data, a model, a loss and a number of epochs."""
    steps: Annotated[int | None, Field(ge=1)] = None
    """Number of batches of a task's run; the task's own number by default."""
    shift: Annotated[float | None, Field(allow_inf_nan=False)] = None
    """Constant that is added to a task's losses."""
    clip: Annotated[float | None, Field(gt=0)] = None
    """Largest norm of a task's gradients."""

    @model_validator(mode="before")
    @classmethod
    def _set_defaults(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        method = METHODS.get(values.get("optimizer", "borat"))
        return ({"lr": method.lr} if method else {}) | ({"epochs": 1} if values.get("task") else {}) | values

    @model_validator(mode="after")
    def _check_task(self) -> Self:
        """Refuse keys that would be ignored, and schedules that a task cannot have."""
        defaults = {key: field.default for key, field in type(self).model_fields.items()} | {"epochs": 1}
        for key, default in defaults.items():
            is_ignored = key in TASK_KEYS if self.task is None else key not in (*TASK_KEYS, *SHARED_KEYS)
            if is_ignored and getattr(self, key) != default:
                reason = "needs a task" if self.task is None else "does not apply to a task"
                raise ValueError(f"{key} {reason}, got {getattr(self, key)!r}")
        if self.task is not None and self.schedule not in BATCH_SCHEDULES:
            allowed = ", ".join(BATCH_SCHEDULES)
            raise ValueError(f"schedule must be one of {allowed} for a task, got {self.schedule!r}")
        return self

    def replace(self, **changes: Any) -> RunConfig:
        """Return a copy with other values for some keys."""
        return RunConfig(**{**self.as_dict(), **changes})

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump()

    @property
    def method(self) -> str:
        """Name of the optimizer and its schedule in tables and figures."""
        return label_of(self.optimizer, self.bundle_size, self.schedule)

    @property
    def identity(self) -> dict[str, Any]:
        """Keys that decide the outcome; a file of word vectors counts by its name alone."""
        return {**self.as_dict(), "glove": self.glove and PurePath(self.glove).name}

    @property
    def digest(self) -> str:
        """Short name of this configuration, the same on every machine."""
        text = json.dumps(self.identity, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def check_method(config: RunConfig) -> None:
    """Raise a ValueError for an unknown optimizer, or one that cannot minimise this loss."""
    allowed = METHODS[pick("optimizer", config.optimizer, METHODS)].losses or LOSSES
    if config.loss not in allowed:
        raise ValueError(f"loss must be {' or '.join(allowed)} for {config.optimizer}, got {config.loss!r}")


class Execution(StrictModel):
    """Devices and other means of training, which should not change the result.

    Attributes:
        devices: number of processes, each with its own device; they share each batch.
        strategy: ``"ddp"`` replicates the model, ``"fsdp"`` shards it (FSDP2); ``"auto"`` is DDP with several devices.
        accelerator: ``"cpu"``, ``"gpu"``, …; ``"auto"`` takes the best available.
        compile: compile the model.
        tensorboard: write events for TensorBoard.
    """

    devices: Count = 1
    strategy: Annotated[str, one_of("auto", "ddp", "fsdp")] = "auto"
    accelerator: Annotated[str, one_of("auto", "cpu", "gpu", "cuda", "mps")] = "auto"
    compile: bool = False
    tensorboard: bool = True
