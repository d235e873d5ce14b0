"""The model of a run, in the shape, memory format and precision of its inputs, and checks before training."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from borat.lab.config import RunConfig, check_method
from borat.lab.data import DATASETS, Task
from borat.lab.files import pick
from borat.lab.models import make_model, parse_name
from borat.lab.tasks import locate

WORD_DIMENSION = 50
"""Dimension of random word vectors, if no file of vectors is given."""


def make_model_for(task: Task, config: RunConfig) -> nn.Module:
    """Return the model of a run for the shapes of its data."""
    check_model_suits(config)
    shape, options = task.description.input_shape, {}
    if task.vocabulary:  # sentences: the model has a frozen embedding matrix
        shape = (len(task.vocabulary), WORD_DIMENSION) if task.embeddings is None else tuple(task.embeddings.shape)
        options = {"embeddings": task.embeddings}
    classes = task.description.num_classes
    model = make_model(config.model, input_shape=shape, classes=classes, dropout=config.dropout, **options)
    if len(shape) == 3:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # much faster on CPUs
    return model.to(torch.float64) if config.precision == "64" else model


def prepare(inputs: Tensor, config: RunConfig) -> Tensor:
    """Return inputs in the precision and the memory format of the model."""
    if inputs.is_floating_point():
        inputs = inputs.to(torch.float64 if config.precision == "64" else torch.float32)
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs


def check_names(config: RunConfig) -> None:
    """Raise a ValueError for a data set, model, optimizer or task that does not exist or does not fit."""
    parse_name(config.model)
    check_model_suits(config)
    check_method(config)
    if config.task is not None:
        locate(config.task)


def check_model_suits(config: RunConfig) -> None:
    """Raise a ValueError for a model that cannot read the data."""
    kind, allowed = config.model.lower().split("-")[0], DATASETS[pick("data set", config.data, DATASETS)].models
    if allowed and kind not in allowed:
        raise ValueError(f"model must be {' or '.join(allowed)} for {config.data}, got {config.model!r}")
    if not allowed and any(kind in loader.models for loader in DATASETS.values()):
        raise ValueError(f"model must take images or vectors for {config.data}, got {config.model!r}")


def check_last_batch(model: nn.Module, examples: int, batch_size: int, processes: int) -> None:
    """Raise a ValueError if a process has only one example in the last batch: BatchNorm1d needs two."""
    last = examples % batch_size or batch_size
    if -(-last // processes) < 2 and any(isinstance(module, nn.BatchNorm1d) for module in model.modules()):
        raise ValueError(
            f"batch_size must leave at least {2 * processes} of {examples} examples for the last batch, "
            f"which batch normalisation needs, got {batch_size}"
        )


def warn_of_few_batches(config: RunConfig, batches: int) -> None:
    """Warn if a run is too short for a whole bundle: its only update is the flush at its end."""
    needed, available = config.bundle_size - 1, batches * config.epochs
    if config.optimizer == "borat" and available < needed:
        warnings.warn(
            f"bundle_size={config.bundle_size} needs {needed} batches for an update, but epochs={config.epochs} and "
            f"batch_size={config.batch_size} give {available}: the only update, at the end, uses these. Train for "
            "more epochs, or with a smaller bundle_size or batch_size",
            stacklevel=2,
        )
