"""Small parts that tasks share: minibatches, made data, handwritten digits and perceptrons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor, nn

HELD_OUT = 300
"""Digits in the validation split, and in the test split."""


def minibatches(size: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield shuffled batches without end; an incomplete one at the end of a pass is left out.

    >>> batch, labels = next(minibatches(2, torch.zeros(5, 3), torch.zeros(5)))
    >>> batch.shape, labels.shape
    (torch.Size([2, 3]), torch.Size([2]))
    """
    count = len(tensors[0])
    while True:
        order = torch.randperm(count)
        for start in range(0, count - size + 1, size):
            chosen = order[start : start + size]
            yield tuple(tensor[chosen] for tensor in tensors)


def mlp(*widths: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return a perceptron with layers of these widths, the first of them that of its input.

    >>> [type(layer).__name__ for layer in mlp(4, 8, 1)]
    ['Linear', 'ReLU', 'Linear']
    """
    layers: list[nn.Module] = []
    for narrow, wide in pairwise(widths):
        layers += [nn.Linear(narrow, wide), activation()]
    return nn.Sequential(*layers[:-1])


def generator(seed: int) -> torch.Generator:
    """Return a generator for made data, which are the same in every run."""
    return torch.Generator().manual_seed(seed)


@lru_cache
def digits(split: str) -> tuple[Tensor, Tensor]:
    """Return scikit-learn's handwritten digits: rows of 64 pixels between 0 and 1, and their classes.

    >>> images, labels = digits("train")
    >>> images.shape, labels.shape
    (torch.Size([1197, 64]), torch.Size([1197]))
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.target), generator=generator(0))
    parts = torch.split(order, [len(order) - 2 * HELD_OUT, HELD_OUT, HELD_OUT])
    chosen = parts[("train", "validation", "test").index(split)]
    return torch.tensor(found.data, dtype=torch.float32)[chosen] / 16.0, torch.tensor(found.target)[chosen]
