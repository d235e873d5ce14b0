"""Streams of random numbers, and label noise.

Each use has its own stream, keyed by a seed and, if applicable, the epoch and the number of the batch. No state is
carried from one batch to the next, so a resumed run draws the same numbers as an uninterrupted one.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
from torch import Tensor


class Purpose(IntEnum):
    """Use of a stream, the first part of its key."""

    ORDER = 1
    AUGMENTATION = 2
    LABEL_NOISE = 3
    HOLD_OUT = 4
    SUBSET = 5
    SYNTHETIC = 6
    EMBEDDING = 7


def make_generator(purpose: Purpose, *key: int) -> torch.Generator:
    """Return a generator for a purpose and a key, on the CPU so that all devices see the same numbers."""
    seed = np.random.SeedSequence([int(purpose), *key]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(seed))


def switch_labels(labels: Tensor, probability: float, families: Tensor, seed: int) -> Tensor:
    """Switch each label with ``probability`` to another class of its family.

    The new label is never the original one. The paper describes "switching the label with probability p to a random
    class label in the same super class", and a label that stays is not switched. So p is the expected share of wrong
    labels, whatever the size of the family; drawing among all k classes of the family would make it p(1 - 1/k), 0.4
    instead of 0.5 for CIFAR-100's families of five. If a class is alone in its family, its labels do not change.

    Args:
        labels: labels of the training examples.
        probability: p.
        families: super-class of each class; all equal if any class may be drawn.
        seed: seed of the noise. For the same seed, labels switched at some p are also switched at any larger p.
    """
    generator = make_generator(Purpose.LABEL_NOISE, seed)
    coin, choice = torch.rand(2, len(labels), generator=generator, dtype=torch.float64)
    by_family = torch.argsort(families, stable=True)
    place = torch.argsort(by_family)  # position of each class in by_family
    sizes = torch.bincount(families)
    starts = sizes.cumsum(0) - sizes
    size, start = sizes[families[labels]], starts[families[labels]]
    steps = 1 + (choice * (size - 1)).long()  # 1 … size - 1 places further round the family
    other = by_family[start + (place[labels] - start + steps) % size]
    return torch.where(coin < probability, other, labels)
