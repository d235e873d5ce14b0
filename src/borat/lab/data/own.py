"""Common parts of the loaders of user data: named classes, and what identifies the data."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from borat.lab.data.errors import DataError

SHOWN = 10
"""Number of classes, folders or files that a message lists."""


def find_classes(labels: Sequence[Any], where: str | Path) -> list[Any]:
    """Return the different labels, sorted."""
    if len({type(label) for label in labels}) > 1:
        raise DataError(f"{where}: the labels must be all integers or all strings, got both")
    classes = sorted(set(labels))
    if len(classes) < 2:
        raise DataError(f"{where} must hold at least two classes, got {listed(classes) or 'none'}")
    return classes


def number_labels(labels: Sequence[tuple[str, Any]], classes: Sequence[Any]) -> Tensor:
    """Return the index of each label in ``classes``; each comes with its place, for messages."""
    indices = {label: index for index, label in enumerate(classes)}
    for place, label in labels:
        if label not in indices:
            raise DataError(f"{place}: {label!r} is not a class of the training data: {listed(classes)}")
    return torch.tensor([indices[label] for _, label in labels])


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
