"""Parts that tasks share: minibatches, perceptrons and the generator of synthetic data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn


def minibatches(size: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield shuffled batches without end, leaving out the incomplete batch at the end of a pass.

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
    """Return a perceptron with layers of these widths, that of its input first.

    >>> [type(layer).__name__ for layer in mlp(4, 8, 1)]
    ['Linear', 'ReLU', 'Linear']
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def generator(seed: int) -> torch.Generator:
    """Return a generator for synthetic data, which are the same in every run."""
    return torch.Generator().manual_seed(seed)
