"""Models by name: ``make_model("wrn-40-4", input_shape=(3, 32, 32), classes=100)``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from borat._checks import check_count, check_flag, is_number
from borat.lab.files import pick, unknown
from borat.lab.models.characters import GPT, NGram
from borat.lab.models.convolutional import CNN, DenseNet, ResNet18, WideResNet
from borat.lab.models.dnc import DNC
from borat.lab.models.infersent import InferSent
from borat.lab.models.mlp import MLP, LogisticRegression

__all__ = ["FAMILIES", "Family", "make_model", "parse_name"]

IMAGE = ("channels", "height", "width")
SMALLEST_IMAGE = 4
"""Pixels per side: most of the networks halve an image twice."""

CHECKS: dict[str, Callable[[str, Any], None]] = {"int": check_count, "bool": check_flag}
"""Checks of a model's arguments, by their annotations."""


@dataclass(frozen=True)
class Family:
    """Models whose names have one form; the numbers in a name are the first arguments of ``build``.

    ``dimensions`` names those of an input; models without them flatten inputs of any shape.
    """

    form: str
    pattern: str
    build: Callable[..., nn.Module]
    examples: tuple[str, ...]
    dimensions: tuple[str, ...] = ()


FAMILIES = (
    Family("wrn-<depth>-<width>", r"wrn-(\d+)-(\d+)", WideResNet, ("wrn-40-4", "wrn-16-4", "wrn-10-1"), IMAGE),
    Family("densenet-bc-<depth>-<growth>", r"densenet-bc-(\d+)-(\d+)", DenseNet, ("densenet-bc-40-40",), IMAGE),
    Family("resnet-18", r"resnet-18", ResNet18, ("resnet-18",), IMAGE),
    Family("infersent or infersent-<hidden>", r"infersent(-\d+)?", InferSent, ("infersent",), ("words", "dimension")),
    Family("dnc", r"dnc", DNC, ("dnc",), ("channels",)),
    Family("gpt-<layers>-<width>", r"gpt-(\d+)-(\d+)", GPT, ("gpt-2-64",), ("characters",)),
    Family("ngram-<context>-<width>", r"ngram-(\d+)-(\d+)", NGram, ("ngram-6-96",), ("characters",)),
    Family("mlp-<width>-<width>-...", r"mlp((?:-\d+)+)", MLP, ("mlp-128-128",)),
    Family("mlp-bn-<width>-...", r"mlp-bn((?:-\d+)+)", partial(MLP, batch_norm=True), ("mlp-bn-128-128",)),
    Family("cnn", r"cnn", CNN, ("cnn",), IMAGE),
    Family("logistic", r"logistic", LogisticRegression, ("logistic",)),
)


def make_model(
    name: str, *, input_shape: Sequence[int], classes: int, dropout: float = 0.0, **options: Any
) -> nn.Module:
    """Build the model called ``name``, initialised from PyTorch's random generator.

    Args:
        name: of one of the forms in :data:`FAMILIES`, in upper or lower case.
        input_shape: of one input without the batch: (channels, height, width) of an image, (words, dimension) of the
            embeddings for ``infersent``, (channels,) of a step for ``dnc``, (characters,) of a window for ``gpt`` and
            ``ngram``.
        classes: number of scores.
        dropout: probability of dropping a unit, for models that have dropout.
        **options: further arguments of the model, such as ``batch_norm`` for an MLP.

    Example:
        >>> model = make_model("mlp-8", input_shape=(4,), classes=3)
        >>> [tuple(parameter.shape) for parameter in model.parameters()]
        [(8, 4), (8,), (3, 8), (3,)]
    """
    family, numbers = parse_name(name)
    signature = inspect.signature(family.build)
    keywords = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
    allowed = [keyword for keyword in keywords if keyword not in ("input_shape", "classes")]
    for option in options:
        pick(f"option of the model {name!r}", option, allowed)
    if not is_number(dropout) or not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must be a number in [0, 1), got {dropout!r}")
    if "dropout" in allowed:
        options["dropout"] = dropout
    elif dropout > 0.0:
        raise ValueError(f"the model {name!r} has no dropout, got dropout={dropout!r}")
    bound = signature.bind(*numbers, input_shape=tuple(input_shape), classes=classes, **options)
    for key, value in bound.arguments.items():
        parameter = signature.parameters[key]
        if check := CHECKS.get(parameter.annotation):
            for each in value if parameter.kind is parameter.VAR_POSITIONAL else (value,):
                check(key, each)
    _check_shape(tuple(input_shape), family.dimensions)
    return family.build(*bound.args, **bound.kwargs)


def _check_shape(shape: tuple[int, ...], dimensions: tuple[str, ...]) -> None:
    if dimensions and len(shape) != len(dimensions):
        raise ValueError(f"input_shape must be ({', '.join(dimensions)}), got {shape!r}")
    for size in shape:
        check_count("each size in input_shape", size)
    if dimensions == IMAGE and min(shape[1:]) < SMALLEST_IMAGE:
        raise ValueError(
            f"images must have at least {SMALLEST_IMAGE} x {SMALLEST_IMAGE} pixels, got {shape[1]} x {shape[2]}; "
            f"image_size scales them, such as image_size={8 * SMALLEST_IMAGE}"
        )


def parse_name(name: str) -> tuple[Family, list[int]]:
    """Return the family of a model and the numbers in its name."""
    for family in FAMILIES:
        match = re.fullmatch(family.pattern, name.lower(), re.ASCII)
        if match:
            return family, [int(number) for group in match.groups(default="") for number in re.findall(r"\d+", group)]
    examples = [example for family in FAMILIES for example in family.examples]
    raise unknown("model", name, examples, forms=[family.form for family in FAMILIES])
