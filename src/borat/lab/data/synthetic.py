"""Problems made from a seed that a linear model can fit perfectly: what the theory assumes."""

from __future__ import annotations

import torch
from torch import Tensor

from borat.lab.data.errors import DataError
from borat.lab.data.noise import any_class, limit, switch_labels
from borat.lab.data.options import Options
from borat.lab.data.randomness import Purpose, generator
from borat.lab.data.task import Description, Task, VectorSplit

MARGIN = 0.1


def load_least_squares(options: Options) -> Task:
    """Real labels y = ⟨w, x⟩ for one hidden w: the smallest loss is zero on every batch (interpolation)."""
    if options.label_noise:
        raise DataError("label_noise switches classes, but least_squares has real labels; use label_noise=0")
    inputs, hidden = _draw(options)
    return _task("least_squares", inputs, inputs @ hidden, 0, options)


def load_separable(options: Options) -> Task:
    """Two classes on the two sides of a hidden plane, at a distance of at least 0.1 from it, in unit variance."""
    inputs, hidden = _draw(options)
    side = torch.where(inputs @ hidden >= 0.0, 1.0, -1.0)
    inputs = inputs + MARGIN * side[:, None] * hidden
    return _task("separable", inputs, (side > 0.0).long(), 2, options)


def _draw(options: Options) -> tuple[Tensor, Tensor]:
    """Inputs of three splits, and a hidden direction of length one."""
    examples, features = options.examples or 1000, options.features or 20
    source = generator(Purpose.SYNTHETIC, options.seed)
    hidden = torch.randn(features, generator=source)
    return torch.randn(examples + 2 * _held(options), features, generator=source), hidden / hidden.norm()


def _held(options: Options) -> int:
    return options.validation_size or max((options.examples or 1000) // 5, 1)


def _task(name: str, inputs: Tensor, labels: Tensor, classes: int, options: Options) -> Task:
    held = _held(options)
    rows = torch.arange(len(labels))
    validation, test, train = rows[:held], rows[held : 2 * held], limit(rows[2 * held :], options.train_limit)
    train_labels, switched = labels[train], 0
    if classes:
        train_labels, switched = switch_labels(labels[train], options.label_noise, any_class(classes), options.seed)
    splits = {
        "train": VectorSplit(inputs[train], train_labels),
        "validation": VectorSplit(inputs[validation], labels[validation]),
        "test": VectorSplit(inputs[test], labels[test]),
    }
    description = Description(
        name,
        classes,
        (inputs.shape[1],),
        sizes={key: len(split) for key, split in splits.items()},
        label_noise=options.label_noise,
        switched_labels=switched,
        sources=dict.fromkeys(splits, (f"made from seed {options.seed}",)),
    )
    return Task(description, splits, options.seed)
