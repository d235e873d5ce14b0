"""Common parts of loaders of a user's own data: classes by name, with examples of each in every split."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from borat.lab.data.errors import DataError, LabelError, MissingDataError
from borat.lab.data.options import Options
from borat.lab.data.splits import hold_out, hold_out_of_each

SHARES = {"test": 1 / 5, "validation": 1 / 10}
"""Of the training examples that are left, for splits that have no files of their own; in this order."""

SHOWN = 10
"""Classes, folders or files that a message names."""


def find_path(name: str, data_dir: Path | None, *, wanted: str, is_folder: bool) -> Path:
    """Return ``data_dir`` if it is a folder, or a file, as it should be."""
    if data_dir is None:
        raise MissingDataError(f"{name} is a user's own data: give data_dir, {wanted}")
    if not data_dir.exists():
        raise MissingDataError(f"{data_dir} does not exist; data_dir must be {wanted} for {name}")
    if data_dir.is_dir() != is_folder:
        raise DataError(
            f"data_dir must be {wanted} for {name}, got the {'folder' if data_dir.is_dir() else 'file'} {data_dir}"
        )
    return data_dir


def find_classes(labels: Sequence[Any], where: str | Path) -> list[Any]:
    """The different labels, in order."""
    classes = sorted(set(labels))
    if len(classes) < 2:
        raise LabelError(f"{where} must hold at least two classes, got {listed(classes) or 'none'}")
    return classes


def number_labels(labels: Sequence[Any], classes: Sequence[Any], place: Callable[[int], str]) -> Tensor:
    """The number of each label among the classes; ``place`` names an example in a message."""
    numbers = {label: number for number, label in enumerate(classes)}
    for row, label in enumerate(labels):
        if label not in numbers:
            raise LabelError(f"{place(row)}: {label!r} is not a class of the training data: {listed(classes)}")
    return torch.tensor([numbers[label] for label in labels])


def share_out(
    labels: Tensor, classes: Sequence[Any], has: Collection[str], options: Options, where: str | Path
) -> dict[str, Tensor]:
    """Split the training examples into those to train on and those to hold out for splits without files."""
    missing = [name for name in SHARES if name not in has]
    counts = torch.bincount(labels, minlength=len(classes)).tolist()
    for name, count in zip(classes, counts, strict=True):
        if count <= len(missing):
            splits = " and ".join(("train", *missing))
            raise LabelError(
                f"{where}: a class needs at least {len(missing) + 1} examples, for {splits}, but {name!r} has {count}"
            )
    rest, rows = torch.arange(len(labels)), {}
    for name in missing:
        if name == "validation" and options.validation_size is not None:
            kept, held = hold_out(len(rest), options.validation_size, where)
        else:
            kept, held = hold_out_of_each(labels[rest], SHARES[name])
        rows[name], rest = rest[held], rest[kept]
    return {"train": rest, **dict(reversed(rows.items()))}


def checksum(*tensors: Tensor) -> str:
    """Tells data from others, wherever they lie."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().numpy().data)
    return found.hexdigest()


def listed(names: Sequence[Any]) -> str:
    """The first of them, for a message."""
    return ", ".join(map(str, names[:SHOWN])) + (", …" if len(names) > SHOWN else "")
