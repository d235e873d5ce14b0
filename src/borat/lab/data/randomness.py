"""Random numbers that depend on what they are for and on nothing else.

Each use has its own stream, keyed by the seed and, where it applies, by the epoch and the number of the batch. No state
is carried from one batch to the next, so a resumed run draws what the uninterrupted one would have drawn.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """Keeps the streams of different uses apart."""

    ORDER = 1
    AUGMENTATION = 2
    LABEL_NOISE = 3
    HOLD_OUT = 4
    SUBSET = 5
    SYNTHETIC = 6
    EMBEDDING = 7


def derived_seed(purpose: Purpose, *key: int) -> int:
    """A seed of 64 bits from the purpose and the numbers in ``key``."""
    return int(np.random.SeedSequence([int(purpose), *key]).generate_state(1, np.uint64)[0])


def generator(purpose: Purpose, *key: int) -> torch.Generator:
    """A generator on the CPU, so that the numbers are the same whatever device trains."""
    return torch.Generator().manual_seed(derived_seed(purpose, *key))
