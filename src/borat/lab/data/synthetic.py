"""A problem made from a seed that a linear model can fit perfectly, as the theory assumes."""

from __future__ import annotations

import torch

from borat.lab.data.options import Options
from borat.lab.data.randomness import Purpose, generator
from borat.lab.data.task import Task, vector_task

EXAMPLES, FEATURES, MARGIN = 1000, 20, 0.1


def load_separable(options: Options) -> Task:
    """Return two classes on the two sides of a hidden plane, at least 0.1 away from it, in unit variance."""
    held = options.validation_size or EXAMPLES // 5
    source = generator(Purpose.SYNTHETIC, options.seed)
    hidden = torch.randn(FEATURES, generator=source)
    hidden /= hidden.norm()
    inputs = torch.randn(EXAMPLES + 2 * held, FEATURES, generator=source)
    side = torch.where(inputs @ hidden >= 0.0, 1.0, -1.0)
    validation, test, rest = torch.arange(len(side)).tensor_split([held, 2 * held])
    return vector_task(
        *("separable", inputs + MARGIN * side[:, None] * hidden, (side > 0.0).long()),
        *({"train": rest, "validation": validation, "test": test}, options),
        classes=2,
        sources=(f"made from seed {options.seed}",),
    )
