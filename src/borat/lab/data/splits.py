"""Splits and subsets: examples held out for validation or test, and limited training sets, the same in every run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from borat.lab.data.errors import DataError
from borat.lab.data.randomness import Purpose, generator

SPLIT_SEED = 1234
"""One for all runs: runs with different seeds have to be compared on the same validation set."""


def hold_out(count: int, held: int, where: str | Path) -> tuple[Tensor, Tensor]:
    """Split the indices of ``count`` examples at random into those that remain and ``held`` ones."""
    if held >= count:
        raise DataError(f"validation_size={held} must be smaller than the {count} training examples in {where}")
    order = torch.randperm(count, generator=generator(Purpose.HOLD_OUT, SPLIT_SEED))
    return order[held:].sort().values, order[:held].sort().values


def limit(indices: Tensor, most: int | None) -> Tensor:
    """Choose at most ``most`` of the examples at random; a smaller choice is part of a larger."""
    if most is None or most >= len(indices):
        return indices
    order = torch.randperm(len(indices), generator=generator(Purpose.SUBSET, SPLIT_SEED))
    return indices[order[:most].sort().values]


def hold_out_of_each(labels: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Split the indices of examples at random into those that remain and a share of each class, at least one.

    >>> [part.tolist() for part in hold_out_of_each(torch.tensor([0, 1, 1, 0]), 0.1)]
    [[1, 3], [0, 2]]
    """
    order = torch.randperm(len(labels), generator=generator(Purpose.HOLD_OUT, SPLIT_SEED))
    is_held = torch.zeros(len(labels), dtype=torch.bool)
    for number in torch.unique(labels):
        members = order[labels[order] == number]
        is_held[members[: max(1, round(share * len(members)))]] = True
    return (~is_held).nonzero().flatten(), is_held.nonzero().flatten()
