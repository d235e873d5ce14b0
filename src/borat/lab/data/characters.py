"""Text as a stream of characters, each to be predicted from those before it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from borat.lab.data.errors import CorruptFileError, DataError, MissingDataError
from borat.lab.data.options import Options
from borat.lab.data.randomness import Purpose, generator
from borat.lab.data.task import Batch, Description, Plan, Task

WINDOW = 64
"""Characters that a model sees at once, unless told otherwise."""

NO_LABEL = -100
"""Label that PyTorch's losses ignore."""

HELD_OUT = 10
"""A tenth of the text is for validation, another for the test."""


@dataclass(eq=False)
class CharacterSplit:
    """A piece of text, cut into windows as they are asked for; an example is a window."""

    tokens: Tensor
    window: int

    def __len__(self) -> int:
        """Number of whole windows."""
        return (len(self.tokens) - 1) // self.window

    def batches(self, plan: Plan) -> Iterator[Batch]:
        """Yield windows one after the other, and for each character the next one.

        A shuffled epoch begins anywhere in the text, which is taken for a ring, so that in each epoch the windows are
        cut elsewhere. The place and the order depend only on the seed and the epoch. Without shuffling, every character
        but the first is predicted once: the last window is filled up, with labels of ``NO_LABEL`` after the end.
        """
        first, order = 0, torch.arange(-(-(len(self.tokens) - 1) // self.window))
        if plan.shuffle:
            source = generator(Purpose.ORDER, plan.seed, plan.epoch)
            first = int(torch.randint(len(self.tokens), (), generator=source))
            order = torch.randperm(len(self), generator=source)
        device = torch.device(plan.device) if plan.device is not None else self.tokens.device
        steps = torch.arange(self.window + 1)
        for number, chosen in enumerate(torch.split(order, plan.batch_size)):
            share = plan.share(len(chosen))
            if number >= plan.start and len(share):
                places = first + self.window * chosen[share, None] + steps
                inside = torch.ones_like(places, dtype=torch.bool) if plan.shuffle else places < len(self.tokens)
                characters = self.tokens[(places % len(self.tokens)).to(self.tokens.device)].to(device).long()
                labels = torch.where(inside.to(device), characters, NO_LABEL)
                yield Batch((characters[:, :-1],), labels[:, 1:])

    def to(self, device: torch.device | str) -> CharacterSplit:
        return CharacterSplit(self.tokens.to(device), self.window)


def load_characters(options: Options) -> Task:
    """Any text file in UTF-8, or the topics of Python's own documentation, which every CPython has.

    The first eight tenths of the text are for training, the next for validation, the last for the test. The alphabet is
    that of the whole text, so that every character has a probability.
    """
    if options.label_noise:
        raise DataError("label_noise switches classes, but text has none; use label_noise=0")
    text, where = _python_topics() if options.data_dir is None else (_read(options.data_dir), str(options.data_dir))
    alphabet, tokens = encode(text)
    if len(alphabet) < 2:
        raise DataError(f"{where} must hold at least two different characters, got only {alphabet!r}")
    splits = _split(tokens, where, options)
    description = Description(
        "text",
        len(alphabet),
        (next(iter(splits.values())).window,),
        sizes={key: len(split) for key, split in splits.items()},
        alphabet=alphabet,
        checksum=hashlib.sha256(text.encode()).hexdigest(),
        sources=dict.fromkeys(splits, (where,)),
        notes=(f"{len(tokens)} characters, {len(alphabet)} different ones",),
    )
    return Task(description, splits, options.seed)


def load_topics(options: Options) -> Task:
    """Those topics, also where there is a folder for other data sets."""
    return load_characters(replace(options, data_dir=None))


def encode(text: str) -> tuple[str, Tensor]:
    """The characters that are in a text, in the order of Unicode, and the number of each character among them.

    >>> encode("banana")
    ('abn', tensor([1, 0, 2, 0, 2, 0], dtype=torch.int32))
    """
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    alphabet, tokens = np.unique(points, return_inverse=True)
    return "".join(map(chr, alphabet.tolist())), torch.from_numpy(tokens.astype(np.int32))


def _split(tokens: Tensor, where: str, options: Options) -> dict[str, CharacterSplit]:
    window = options.window or WINDOW
    held = len(tokens) // HELD_OUT
    validation = held if options.validation_size is None else options.validation_size * window + 1
    train = len(tokens) - held - validation
    least = window + 1
    if options.validation_size is not None and train < least <= held:
        most = (len(tokens) - held - least - 1) // window
        raise DataError(
            f"validation_size must be at most {most} for the {len(tokens)} characters of {where}: it is counted in "
            f"windows, here of {window}, got {options.validation_size}"
        )
    if min(held, validation, train) < least:
        raise DataError(
            f"{where} has {len(tokens)} characters; training, validation and a test on a tenth of them need "
            f"{least} each for a window of {window}, so at least {HELD_OUT * least} with the usual validation_size"
        )
    if options.train_limit is not None:
        train = min(train, options.train_limit * window + 1)
    parts = {"train": tokens[:train], "validation": tokens[-held - validation : -held], "test": tokens[-held:]}
    return {name: CharacterSplit(part, window) for name, part in parts.items()}


def _python_topics() -> tuple[str, str]:
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics)), "Python's pydoc_data.topics"


def _read(path: Path) -> str:
    if not path.exists():
        raise MissingDataError(f"the file {path} does not exist; data_dir must be a text file for text")
    if path.is_dir():
        raise DataError(f"data_dir must be a text file for text, got the folder {path}")
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")  # without the mark that some editors put first
    except UnicodeDecodeError as error:
        raise CorruptFileError(
            f"{path} must be text in UTF-8: byte {error.start} is 0x{content[error.start]:02x}, {error.reason}"
        ) from error
    if not text:
        raise DataError(f"{path} is empty; it must hold text")
    return text
