"""Random splits and subsets, the same in every run, and the classes of user data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from borat.lab.data.errors import DataError
from borat.lab.data.sampling import Purpose, make_generator
from borat.lab.data.task import MemorySplit, Options

SPLIT_SEED = 1234
"""Seed of all splits and subsets: runs with different seeds share one validation set."""
SHOWN = 10
"""Number of classes, folders or files that a message lists."""
SHARES = {"test": 1 / 5, "validation": 1 / 10}
"""Shares of the remaining training examples to hold out, in this order, for splits without files."""


def hold_out(split: MemorySplit, size: int) -> tuple[MemorySplit, MemorySplit]:
    """Return the remaining examples and ``size`` random held-out ones, the same in every run."""
    if size >= len(split):
        where = ", ".join(split.sources)
        raise DataError(f"validation_size={size} must be smaller than the {len(split)} training examples in {where}")
    held, rest = sample(Purpose.HOLD_OUT, len(split), size)
    return split.pick(rest), split.pick(held)


def limit(split: MemorySplit, size: int | None) -> MemorySplit:
    """Pick at most ``size`` random examples, the same in every run; larger subsets contain smaller ones."""
    return split if size is None or size >= len(split) else split.pick(sample(Purpose.SUBSET, len(split), size)[0])


def split_off(
    splits: Mapping[str, MemorySplit], classes: Sequence[Any], options: Options, where: Path
) -> dict[str, MemorySplit]:
    """Hold out training examples for the validation and test splits that are missing."""
    splits, train = dict(splits), splits["train"]
    missing = [name for name in SHARES if name not in splits]
    counts = torch.bincount(train.labels, minlength=len(classes)).tolist()
    for label, count in zip(classes, counts, strict=True):
        if count <= len(missing):
            raise DataError(
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


def sample(purpose: Purpose, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Split the indices below ``count`` into a random sample and the rest; larger samples contain smaller ones."""
    order = torch.randperm(count, generator=make_generator(purpose, SPLIT_SEED))
    return order[:size].sort().values, order[size:].sort().values


def sample_each_class(labels: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Split the indices of examples into a random share of each class, with at least one example, and the rest.

    >>> [part.tolist() for part in sample_each_class(torch.tensor([0, 1, 1, 0]), 0.1)]
    [[0, 2], [1, 3]]
    """
    order = torch.randperm(len(labels), generator=make_generator(Purpose.HOLD_OUT, SPLIT_SEED))
    is_chosen = torch.zeros(len(labels), dtype=torch.bool)
    for label in torch.unique(labels):
        members = order[labels[order] == label]
        is_chosen[members[: max(1, round(share * len(members)))]] = True
    return is_chosen.nonzero().flatten(), (~is_chosen).nonzero().flatten()


# Classes of user data


def find_classes(labels: Sequence[Any], where: str | Path) -> list[Any]:
    """Return the distinct labels, sorted."""
    if len({type(label) for label in labels}) > 1:
        raise DataError(f"{where}: the labels must be all integers or all strings, got both")
    classes = sorted(set(labels))
    if len(classes) < 2:
        raise DataError(f"{where} must hold at least two classes, got {listed(classes) or 'none'}")
    return classes


def number_labels(labels: Sequence[tuple[str, Any]], classes: Sequence[Any]) -> Tensor:
    """Return the index in ``classes`` of each label, which comes with its location for messages."""
    indices = {label: index for index, label in enumerate(classes)}
    for place, label in labels:
        if label not in indices:
            raise DataError(f"{place}: {label!r} is not a class of the training data: {listed(classes)}")
    return torch.tensor([indices[label] for _, label in labels])


def checksum(*tensors: Tensor) -> str:
    """Return the SHA-256 checksum of the tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().numpy().data)
    return found.hexdigest()


def name_classes(classes: Sequence[Any]) -> str:
    """Return the note that lists the classes of a data set."""
    return f"classes in the order of their numbers: {', '.join(map(str, classes))}"


def listed(names: Sequence[Any]) -> str:
    """Join the first names, for a message."""
    return ", ".join(map(str, names[:SHOWN])) + (", …" if len(names) > SHOWN else "")
