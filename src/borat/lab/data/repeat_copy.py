"""The repeat-copy task that a differentiable neural computer is trained on (Graves et al., 2016)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from borat._checks import check_count
from borat.lab.data.errors import DataError
from borat.lab.data.options import Options
from borat.lab.data.randomness import Purpose, generator
from borat.lab.data.task import Task, vector_task

EXAMPLES = 4096
BITS = 4


def load_repeat_copy(options: Options) -> Task:
    """Sequences drawn from the seed; labels are the bits of the answer, and -1 where nothing is asked."""
    if options.label_noise:
        raise DataError("label_noise switches classes, but repeat_copy has sequences of bits; use label_noise=0")
    held = options.validation_size or EXAMPLES // 8
    drawn = repeat_copy(EXAMPLES + 2 * held, bits=BITS, generator=generator(Purpose.SYNTHETIC, options.seed))
    labels = torch.where(drawn.mask.unsqueeze(2) > 0, drawn.targets, -1.0)
    validation, test, rest = torch.arange(len(labels)).tensor_split([held, 2 * held])
    return vector_task(
        *("repeat_copy", drawn.inputs, labels, {"train": rest, "validation": validation, "test": test}, options),
        classes=0,
        num_classes=labels.shape[2],
        sequences=True,
        sources=(f"made from seed {options.seed}",),
    )


class RepeatCopy(NamedTuple):
    """Sequences of the repeat-copy task: inputs, targets of shape (batch, steps, channels), and what is scored."""

    inputs: Tensor
    targets: Tensor
    mask: Tensor
    """Of shape (batch, steps): one where the target counts."""


def repeat_copy(
    batch_size: int = 16,
    *,
    bits: int = 4,
    length: tuple[int, int] = (1, 2),
    repeats: tuple[int, int] = (1, 2),
    scale: float = 10.0,
    generator: torch.Generator | None = None,
) -> RepeatCopy:
    """Draw a batch: a random pattern is shown once, then has to be repeated as often as asked, and ended.

    The inputs have two channels beside those of the bits: a one in the first step, and the number of repeats over
    ``scale`` in the step after the pattern. The targets have one: a one in the last step. The defaults are the task
    of the computer's authors.

    Args:
        batch_size: the number of sequences; shorter ones are padded by zeros.
        bits: of each vector of the pattern.
        length: the smallest and the largest length of the pattern.
        repeats: the smallest and the largest number of repeats.
        scale: what the number of repeats is divided by.
        generator: the source of randomness.
    """
    for name, value in (("batch_size", batch_size), ("bits", bits)):
        check_count(name, value)
    for name, (low, high) in (("length", length), ("repeats", repeats)):
        if not 1 <= low <= high:
            raise ValueError(f"{name} must be (smallest, largest) with 1 <= smallest <= largest, got {(low, high)!r}")
    pattern = torch.randint(2, (batch_size, length[1], bits), generator=generator).float()
    lengths = torch.randint(length[0], length[1] + 1, (batch_size, 1), generator=generator)
    times = torch.randint(repeats[0], repeats[1] + 1, (batch_size, 1), generator=generator)
    step = torch.arange(int((lengths * (times + 1)).max()) + 3).expand(batch_size, -1)
    answer = step - lengths - 2  # the step of the answer, which starts when the question is over
    asked, answered = (step >= 1) & (step <= lengths), (answer >= 0) & (answer < lengths * times)

    def pattern_at(index: Tensor, where: Tensor) -> Tensor:
        index = torch.where(where, index, 0).unsqueeze(2).expand(-1, -1, bits)
        return pattern.gather(1, index) * where.unsqueeze(2)

    start, ask, end = step == 0, (step == lengths + 1) * times / scale, answer == lengths * times
    return RepeatCopy(
        inputs=torch.cat((pattern_at(step - 1, asked), start.unsqueeze(2), ask.unsqueeze(2)), 2),
        targets=torch.cat((pattern_at(answer % lengths, answered), end.unsqueeze(2)), 2),
        mask=(answered | end).float(),
    )
