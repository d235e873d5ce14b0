"""Common parts of the loaders of user data: named classes, and splits with examples of each class."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from borat.lab.data.errors import LabelError
from borat.lab.data.options import Options
from borat.lab.data.sampling import sample_each_class
from borat.lab.data.task import MemorySplit, hold_out

SHARES = {"test": 1 / 5, "validation": 1 / 10}
"""Shares of the remaining training examples for splits without files, in this order."""

SHOWN = 10
"""Number of classes, folders or files that a message lists."""


def find_classes(labels: Sequence[Any], where: str | Path) -> list[Any]:
    """Return the different labels, sorted."""
    if len({type(label) for label in labels}) > 1:
        raise LabelError(f"{where}: the labels must be all integers or all strings, got both")
    classes = sorted(set(labels))
    if len(classes) < 2:
        raise LabelError(f"{where} must hold at least two classes, got {listed(classes) or 'none'}")
    return classes


def number_labels(labels: Sequence[tuple[str, Any]], classes: Sequence[Any]) -> Tensor:
    """Return the index of each label in ``classes``; each comes with its place, for messages."""
    indices = {label: index for index, label in enumerate(classes)}
    for place, label in labels:
        if label not in indices:
            raise LabelError(f"{place}: {label!r} is not a class of the training data: {listed(classes)}")
    return torch.tensor([indices[label] for _, label in labels])


def split_off(
    splits: Mapping[str, MemorySplit], classes: Sequence[Any], options: Options, where: Path
) -> dict[str, MemorySplit]:
    """Hold out training examples for the validation and test splits that are missing."""
    splits, train = dict(splits), splits["train"]
    missing = [name for name in SHARES if name not in splits]
    counts = torch.bincount(train.labels, minlength=len(classes)).tolist()
    for label, count in zip(classes, counts, strict=True):
        if count <= len(missing):
            raise LabelError(
                f"{where}: a class needs at least {len(missing) + 1} examples, for "
                f"{' and '.join(('train', *missing))}, but {label!r} has {count}"
            )
    for name in missing:
        if name == "validation" and options.validation_size is not None:
            train, splits[name] = hold_out(train, options.validation_size)
        else:
            held, rest = sample_each_class(train.labels, SHARES[name])
            train, splits[name] = train.pick(rest), train.pick(held)
    return {"train": train, "validation": splits["validation"], "test": splits["test"]}


def checksum(*tensors: Tensor) -> str:
    """Return a checksum that identifies the data."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().numpy().data)
    return found.hexdigest()


def name_classes(classes: Sequence[Any]) -> str:
    """Return the note that lists the classes of a data set."""
    return f"classes in the order of their numbers: {', '.join(map(str, classes))}"


def listed(names: Sequence[Any]) -> str:
    """Join the first names for a message."""
    return ", ".join(map(str, names[:SHOWN])) + (", …" if len(names) > SHOWN else "")
