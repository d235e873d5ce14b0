"""Problems generated from a seed: separable vectors, and the repeat-copy task of differentiable neural computers."""

from __future__ import annotations

import torch
from torch import Tensor

from borat.lab.data.sampling import Purpose, make_generator
from borat.lab.data.splits import limit
from borat.lab.data.task import MemorySplit, Options, Task, make_task

SEPARABLE, FEATURES, MARGIN = 1000, 20, 0.1
SEQUENCES = 4096
REPEATS_SCALE = 10.0
"""Divisor of the number of repeats in the inputs."""


def load_separable(options: Options) -> Task:
    """Return Gaussian vectors of two classes, separated by a hidden plane with a margin of 0.1 on each side.

    A linear model can fit them perfectly, as the theory assumes.
    """
    held = options.validation_size or SEPARABLE // 5
    generator = make_generator(Purpose.SYNTHETIC, options.seed)
    hidden = torch.randn(FEATURES, generator=generator)
    hidden /= hidden.norm()
    inputs = torch.randn(SEPARABLE + 2 * held, FEATURES, generator=generator)
    side = torch.where(inputs @ hidden >= 0.0, 1.0, -1.0)
    inputs = inputs + MARGIN * side[:, None] * hidden
    splits = _split(inputs, (side > 0.0).long(), held, options)
    return make_task("separable", splits, options, input_shape=(FEATURES,), classes=2)


def load_repeat_copy(options: Options) -> Task:
    """Return sequences of the repeat-copy task, generated from the seed."""
    held = options.validation_size or SEQUENCES // 8
    generator = make_generator(Purpose.SYNTHETIC, options.seed)
    inputs, labels = repeat_copy(SEQUENCES + 2 * held, generator=generator)
    return make_task(
        "repeat_copy",
        _split(inputs, labels, held, options),
        options,
        input_shape=(inputs.shape[2],),
        classes=labels.shape[2],
        sequences=True,
    )


def _split(inputs: Tensor, labels: Tensor, held: int, options: Options) -> dict[str, MemorySplit]:
    whole = MemorySplit(labels, (f"made from seed {options.seed}",), (inputs,))
    validation, test, train = map(whole.pick, torch.arange(len(labels)).tensor_split([held, 2 * held]))
    return {"train": limit(train, options.train_limit), "validation": validation, "test": test}


def repeat_copy(
    count: int,
    *,
    bits: int = 4,
    length: tuple[int, int] = (1, 2),
    repeats: tuple[int, int] = (1, 2),
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw sequences of the repeat-copy task (Graves et al., 2016): repeat a pattern several times, then end.

    Return inputs and labels of shape (count, steps, channels). Besides the bits, the inputs have two channels: a one in
    the first step, and the scaled number of repeats in the step after the pattern. The labels have one more channel: a
    one in the last step. Labels are -1 in steps that do not count. The defaults are those of the authors.

    Args:
        count: number of sequences; shorter ones are padded with zeros.
        bits: number of bits in each vector of the pattern.
        length: smallest and largest length of the pattern.
        repeats: smallest and largest number of repeats.
        generator: source of randomness.
    """
    pattern = torch.randint(2, (count, length[1], bits), generator=generator).float()
    lengths = torch.randint(length[0], length[1] + 1, (count, 1), generator=generator)
    times = torch.randint(repeats[0], repeats[1] + 1, (count, 1), generator=generator)
    step = torch.arange(int((lengths * (times + 1)).max()) + 3).expand(count, -1)
    answer = step - lengths - 2  # step of the answer, which starts after the request
    asked, answered = (step >= 1) & (step <= lengths), (answer >= 0) & (answer < lengths * times)

    def pattern_at(index: Tensor, where: Tensor) -> Tensor:
        index = torch.where(where, index, 0).unsqueeze(2).expand(-1, -1, bits)
        return pattern.gather(1, index) * where.unsqueeze(2)

    start, ask, end = step == 0, (step == lengths + 1) * times / REPEATS_SCALE, answer == lengths * times
    inputs = torch.cat((pattern_at(step - 1, asked), start.unsqueeze(2), ask.unsqueeze(2)), 2)
    targets = torch.cat((pattern_at(answer % lengths, answered), end.unsqueeze(2)), 2)
    return inputs, torch.where((answered | end).unsqueeze(2), targets, -1.0)
