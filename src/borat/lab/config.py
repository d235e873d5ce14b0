"""Frozen, typed configurations of a training run and of its execution, from files, flags or Python."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePath
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from borat.lab.files import pick
from borat.lab.methods import METHODS, label_of
from borat.lab.strict import StrictModel, one_of

LOSSES = {
    "ce": "torch.nn:CrossEntropyLoss",
    "hinge": "borat.losses:MultiClassHingeLoss",
    "smooth-hinge": "borat.losses:SmoothHingeLoss",
    "top5": "borat.losses:TopKCrossEntropyLoss",
}
"""Losses of the paper, each as ``module:name``; all are averaged over the batch."""
BATCH_SCHEDULES = ("constant", "cosine", "one-cosine", "warmup", "warmup-cosine")
"""Schedules that update the learning rate per batch rather than per epoch; tasks support only these."""
SCHEDULES = (*BATCH_SCHEDULES, "manual", "piecewise", "geometric", "plateau")
TASK_KEYS = ("task", "steps", "shift", "clip")
"""Keys that apply only to tasks."""
NAMED_BY_METHOD = ("optimizer", "bundle_size", "schedule")
"""Keys that are part of the name of a method."""
CHOICES = ("lr", "momentum", "weight_decay", "radius")
"""Other hyperparameters of a method."""
SHARED_KEYS = (*NAMED_BY_METHOD, *CHOICES, "seed")
"""Keys that apply with and without a task. All others describe the problem."""

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Coefficient = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RunConfig(StrictModel):
    """The configuration of a training run: everything that affects the result; its digest names the run.

    The budget is in passes over the data, as in the paper. The descriptions are those of the flags.
    """

    data: str = Field(
        default="digits", description="Name of a data set such as cifar100, or images, csv or text for your own data"
    )
    label_noise: float = Field(default=0.0, ge=0, le=1, description="Probability that a training label is wrong")
    train_limit: int | None = Field(default=None, ge=1, description="Number of training examples to use")
    validation_size: int | None = Field(default=None, ge=1, description="Number of training examples to hold out")
    augment: bool = Field(default=True, description="Augment training images")
    train_split: str | None = Field(default=None, description="Split of snli to train on: train or validation")
    glove: str | None = Field(default=None, description="File of GloVe vectors for snli")
    image_size: int | None = Field(default=None, ge=1, description="Width and height to scale images to, in pixels")
    image_column: str | None = Field(default=None, description="Column of images in parquet files")
    label_column: str | None = Field(default=None, description="Column of labels in parquet and CSV files")
    window: int | None = Field(default=None, ge=1, description="Characters in an example of text")

    model: str = Field(default="mlp-128-128", description="Name of a model such as wrn-40-4")
    dropout: Fraction = Field(default=0.0, description="Probability of dropout")
    loss: Annotated[str, one_of(*LOSSES)] = Field(default="ce", description=f"One of {', '.join(LOSSES)}")

    optimizer: str = Field(default="free-borat", description=f"One of {', '.join(METHODS)}")
    bundle_size: Count = Field(default=3, description="Pieces in a bundle, including the constant one")
    lr: Coefficient = Field(default=1.0, description="Learning rate; a cap for borat and alig, a factor for free-borat")
    """Default: the learning rate that the optimizer's authors recommend."""
    schedule: Annotated[str, one_of(*SCHEDULES)] = Field(
        default="constant", description=f"One of {', '.join(SCHEDULES)}"
    )
    momentum: Fraction = Field(default=0.9, description="Momentum")
    weight_decay: Coefficient = Field(default=0.0, description="Weight decay")
    radius: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="Bound on the norm of the weights"
    )

    epochs: Count = Field(default=10, description="Passes over the training data")
    batch_size: Count = Field(default=128, description="Examples in a batch")
    seed: int = Field(default=0, ge=0, description="Seed of all random numbers")

    precision: Annotated[str, one_of("32", "64", "bf16-mixed")] = Field(
        default="32", description="Precision: 32, 64 or bf16-mixed"
    )

    task: str | None = Field(
        default=None, description="Name of a task such as vae, or file.py:Class; replaces --data and --model"
    )
    """A task of :mod:`borat.lab.tasks` also replaces the loss and the number of epochs."""
    steps: int | None = Field(default=None, ge=1, description="Number of batches of a task, to replace its own")
    shift: float | None = Field(default=None, allow_inf_nan=False, description="Constant to add to a task's losses")
    clip: float | None = Field(default=None, gt=0, description="Maximum norm of a task's gradients")

    @model_validator(mode="before")
    @classmethod
    def _set_defaults(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        method = METHODS.get(values.get("optimizer", cls.model_fields["optimizer"].default))
        return ({"lr": method.lr} if method else {}) | ({"epochs": 1} if values.get("task") else {}) | values

    @model_validator(mode="after")
    def _check_task(self) -> Self:
        """Raise an error for keys without effect and for schedules that tasks do not support."""
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
        """Keys that determine the result, with only the name of a file of word vectors."""
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
    """Execution options, such as devices; they should not change the result."""

    devices: Count = Field(default=1, description="Number of processes, each with a device; they share each batch")
    strategy: Annotated[str, one_of("auto", "ddp", "fsdp")] = Field(
        default="auto", description="ddp (replicate the model), fsdp (shard it) or auto (ddp with several devices)"
    )
    accelerator: Annotated[str, one_of("auto", "cpu", "gpu", "cuda", "mps")] = Field(
        default="auto", description="cpu, gpu, mps or auto (the best available)"
    )
    compile: bool = Field(default=False, description="Compile the model")
    tensorboard: bool = Field(default=True, description="Write TensorBoard events")
