"""The model of a run, with the shapes, the layout and the precision of its inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from borat.lab.config import RunConfig
from borat.lab.data import Task
from borat.lab.models import make_model
from borat.lab.training.checks import check_model_suits

WORD_DIMENSION = 50
"""Dimension of random word vectors, if no file of vectors is given."""


def make_model_for(task: Task, config: RunConfig) -> nn.Module:
    """Return the model of a run, with the shapes of its data."""
    check_model_suits(config)
    shape, options = task.description.input_shape, {}
    if task.vocabulary:  # sentences: the model looks words up in a frozen matrix
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
