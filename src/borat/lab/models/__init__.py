"""Models by name: ``make_model("wrn-40-4", input_shape=(3, 32, 32), classes=100)``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from borat._checks import check_count, is_number
from borat.lab.files import unknown
from borat.lab.models.characters import GPT, NGram
from borat.lab.models.convolutional import CNN, DenseNet, ResNet18, WideResNet
from borat.lab.models.dnc import DNC
from borat.lab.models.infersent import InferSent
from borat.lab.models.mlp import MLP, LogisticRegression

__all__ = ["FAMILIES", "Family", "make_model", "parse_name"]

IMAGE = ("channels", "height", "width")
SMALLEST_IMAGE = 4
"""Pixels per side: most of the networks halve an image twice."""


@dataclass(frozen=True)
class Family:
    """Models whose names have one form; the numbers in place of ``<…>`` are the first arguments of ``build``.

    ``dimensions`` names the dimensions of an input; models without them flatten inputs of any shape.
    """

    form: str
    build: Callable[..., nn.Module]
    examples: tuple[str, ...]
    dimensions: tuple[str, ...] = ()


FAMILIES = (
    Family("wrn-<depth>-<width>", WideResNet, ("wrn-40-4", "wrn-16-4", "wrn-10-1"), IMAGE),
    Family("densenet-bc-<depth>-<growth>", DenseNet, ("densenet-bc-40-40",), IMAGE),
    Family("resnet-18", ResNet18, ("resnet-18",), IMAGE),
    Family("infersent", InferSent, ("infersent",), ("words", "dimension")),
    Family("infersent-<hidden>", InferSent, ("infersent-512",), ("words", "dimension")),
    Family("dnc", DNC, ("dnc",), ("channels",)),
    Family("gpt-<layers>-<width>", GPT, ("gpt-2-64",), ("characters",)),
    Family("ngram-<context>-<width>", NGram, ("ngram-6-96",), ("characters",)),
    Family("mlp-<width>-...", MLP, ("mlp-128-128",)),
    Family("mlp-bn-<width>-...", partial(MLP, batch_norm=True), ("mlp-bn-128-128",)),
    Family("cnn", CNN, ("cnn",), IMAGE),
    Family("logistic", LogisticRegression, ("logistic",)),
)


def make_model(
    name: str, *, input_shape: Sequence[int], classes: int, dropout: float = 0.0, **options: Any
) -> nn.Module:
    """Build the model called ``name``, initialised from PyTorch's global generator.

    Args:
        name: a name in one of the forms of :data:`FAMILIES`, in upper or lower case.
        input_shape: shape of an input without the batch dimension: (channels, height, width) of an image, (words,
            dimension) of the embeddings for ``infersent``, (channels,) of a step for ``dnc``, (characters,) of a window
            for ``gpt`` and ``ngram``.
        classes: number of scores.
        dropout: dropout probability, for models with dropout.
        **options: further arguments of the model, such as ``batch_norm`` for an MLP.

    Example:
        >>> model = make_model("mlp-8", input_shape=(4,), classes=3)
        >>> [tuple(parameter.shape) for parameter in model.parameters()]
        [(8, 4), (8,), (3, 8), (3,)]
    """
    family, numbers = parse_name(name)
    shape, dimensions = tuple(input_shape), family.dimensions
    if dimensions and len(shape) != len(dimensions):
        raise ValueError(f"input_shape must be ({', '.join(dimensions)}), got {shape!r}")
    for size in shape:
        check_count("each size in input_shape", size)
    if dimensions == IMAGE and min(shape[1:]) < SMALLEST_IMAGE:
        raise ValueError(
            f"images must have at least {SMALLEST_IMAGE} x {SMALLEST_IMAGE} pixels, got {shape[1]} x {shape[2]}; "
            f"image_size scales them, such as --image-size {8 * SMALLEST_IMAGE}"
        )
    check_count("classes", classes)
    if not is_number(dropout) or not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must be a number in [0, 1), got {dropout!r}")
    if "dropout" in inspect.signature(family.build).parameters:
        options["dropout"] = dropout
    elif dropout > 0.0:
        raise ValueError(f"the model {name!r} has no dropout, got dropout={dropout!r}")
    return family.build(*numbers, input_shape=shape, classes=classes, **options)


def parse_name(name: str) -> tuple[Family, list[int]]:
    """Return the family of a model and the numbers in its name.

    >>> parse_name("wrn-40-4")[1], parse_name("resnet-18")[1]
    ([40, 4], [])
    """
    for family in FAMILIES:
        pattern = re.sub("<.*?>", r"[1-9]\\d*", family.form).replace("-...", r"(-[1-9]\d*)*")
        if re.fullmatch(pattern, name.lower(), re.ASCII):
            return family, [int(number) for number in re.findall(r"\d+", name)] if "<" in family.form else []
    examples = [example for family in FAMILIES for example in family.examples]
    raise unknown("model", name, examples, forms=[family.form for family in FAMILIES])
