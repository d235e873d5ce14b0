"""Models by name: ``make_model("wrn-40-4", input_shape=(3, 32, 32), classes=100)``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from borat.lab.files import pick, unknown
from borat.lab.models.common import check_dropout
from borat.lab.models.densenet import DenseNet
from borat.lab.models.dnc import DNC
from borat.lab.models.gpt import GPT
from borat.lab.models.infersent import InferSent
from borat.lab.models.mlp import CNN, MLP, LogisticRegression
from borat.lab.models.ngram import NGram
from borat.lab.models.resnet import ResNet18
from borat.lab.models.wrn import WideResNet

__all__ = [
    "CNN",
    "DNC",
    "FAMILIES",
    "GPT",
    "MLP",
    "DenseNet",
    "Family",
    "InferSent",
    "LogisticRegression",
    "NGram",
    "ResNet18",
    "WideResNet",
    "make_model",
    "parse_name",
]


@dataclass(frozen=True)
class Family:
    """Models whose names have one form; the numbers in a name are the first arguments of ``build``."""

    form: str
    pattern: str
    build: Callable[..., nn.Module]
    examples: tuple[str, ...]

    def options(self) -> tuple[str, ...]:
        """The keywords it takes beside those that all models have."""
        parameters = inspect.signature(self.build).parameters.values()
        return tuple(
            p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("input_shape", "classes")
        )


FAMILIES = (
    Family("wrn-<depth>-<width>", r"wrn-(\d+)-(\d+)", WideResNet, ("wrn-40-4", "wrn-16-4", "wrn-16-1", "wrn-10-1")),
    Family("densenet-bc-<depth>-<growth>", r"densenet-bc-(\d+)-(\d+)", DenseNet, ("densenet-bc-40-40",)),
    Family("resnet-18", r"resnet-18", ResNet18, ("resnet-18",)),
    Family("infersent or infersent-<hidden>", r"infersent(-\d+)?", InferSent, ("infersent",)),
    Family("dnc", r"dnc", DNC, ("dnc",)),
    Family("gpt-<layers>-<width>", r"gpt-(\d+)-(\d+)", GPT, ("gpt-2-64",)),
    Family("ngram-<context>-<width>", r"ngram-(\d+)-(\d+)", NGram, ("ngram-6-96",)),
    Family("mlp-<width>-<width>-...", r"mlp((?:-\d+)+)", MLP, ("mlp-128-128",)),
    Family("mlp-bn-<width>-...", r"mlp-bn((?:-\d+)+)", partial(MLP, batch_norm=True), ("mlp-bn-128-128",)),
    Family("cnn", r"cnn", CNN, ("cnn",)),
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
        classes: the number of scores.
        dropout: the probability to drop a unit, for models that have dropout.
        **options: what else the model takes, such as ``batch_norm`` for an MLP.

    Example:
        >>> make_model("mlp-8", input_shape=(4,), classes=3)
        MLP(
          (layers): Sequential(
            (0): Linear(in_features=4, out_features=8, bias=True)
            (1): ReLU(inplace=True)
            (2): Dropout(p=0.0, inplace=False)
            (3): Linear(in_features=8, out_features=3, bias=True)
          )
        )
    """
    family, numbers = parse_name(name)
    allowed = family.options()
    check_dropout(dropout)
    if dropout > 0.0 and "dropout" not in allowed:
        raise ValueError(f"the model {name!r} has no dropout, got dropout={dropout!r}")
    for option in options:
        pick(f"option of the model {name!r}", option, allowed)
    if "dropout" in allowed:
        options["dropout"] = dropout
    return family.build(*numbers, input_shape=tuple(input_shape), classes=classes, **options)


def parse_name(name: str) -> tuple[Family, list[int]]:
    """The family of a model and the numbers in its name."""
    for family in FAMILIES:
        match = re.fullmatch(family.pattern, name.lower(), re.ASCII)
        if match:
            return family, [int(number) for group in match.groups(default="") for number in re.findall(r"\d+", group)]
    examples = [example for family in FAMILIES for example in family.examples]
    raise unknown("model", name, examples, forms=[family.form for family in FAMILIES])
