"""Text as a stream of characters, each to be predicted from those before it."""

from __future__ import annotations

import hashlib
import platform
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import Tensor

from borat.lab.data.errors import DataError
from borat.lab.data.sampling import Purpose, make_generator
from borat.lab.data.source import find_path
from borat.lab.data.task import Batch, Options, Plan, Task, make_task

WINDOW = 64
"""Default number of characters in an example."""
NO_LABEL = -100
"""Label that PyTorch's losses ignore."""
OUTSIDE = re.compile(r"(^|/)((site|dist)-packages|tests?|_bundled|config-[^/]*)/|_sysconfigdata|sitecustomize")
"""Paths in the standard library's folder that are not part of it, differ between installations, or are tests."""


@dataclass(eq=False)
class CharacterSplit:
    """A piece of text; an example is a window of it."""

    tokens: Tensor
    window: int
    sources: tuple[str, ...]
    limit: int | None = None
    """Number of windows in a pass, if limited: random windows if shuffled, otherwise equally spaced ones."""

    def __len__(self) -> int:
        """Return the number of whole windows in a pass."""
        whole = (len(self.tokens) - 1) // self.window
        return whole if self.limit is None else min(self.limit, whole)

    def batches(self, plan: Plan) -> Iterator[Batch]:
        """Yield windows and, as labels, the next character at each position.

        A shuffled epoch treats the text as a ring and cuts it at a random offset, so that each epoch has different
        windows. The offset and the order depend only on the seed and the epoch. Without shuffling, every character but
        the first is predicted once: the last window is padded, with the label ``NO_LABEL`` after the end of the text.
        """
        total = len(self.tokens)
        first, order = 0, torch.arange(-(-(total - 1) // self.window))
        if self.limit is not None:
            order = order[:: len(order) // len(self)][: len(self)]
        if plan.shuffle:
            generator = make_generator(Purpose.ORDER, plan.seed, plan.epoch)
            first = int(torch.randint(total, (), generator=generator))
            order = torch.randperm((total - 1) // self.window, generator=generator)[: len(self)]
        for _, chosen, share in plan.cut(order):
            places = first + self.window * chosen[share, None] + torch.arange(self.window + 1)
            places = places.to(self.tokens.device)
            characters = self.tokens[places % total].long()
            labels = characters if plan.shuffle else torch.where(places < total, characters, NO_LABEL)
            yield Batch((characters[:, :-1],), labels[:, 1:])

    def to(self, device: torch.device | str) -> CharacterSplit:
        return replace(self, tokens=self.tokens.to(device))


def load_characters(options: Options) -> Task:
    """Load a text file in UTF-8; by default, the topics of Python's documentation, which are part of CPython.

    The first eight tenths of the text are for training, the next tenth for validation, the last for the test. The
    alphabet is that of the whole text, so that every character has a probability.
    """
    text, where = "\n".join(topics[name] for name in sorted(topics)), "Python's pydoc_data.topics"
    if options.data_dir is not None:
        text, where = _read(options.data_dir)
    return _as_task("text", text, where, options)


def _as_task(name: str, text: str, where: str, options: Options, **limits: int | None) -> Task:
    """Return the task of a text. ``limits`` holds the number of windows in a pass over a split, if limited."""
    alphabet, tokens = encode(text)
    if len(alphabet) < 2:
        raise DataError(f"{where} must hold at least two different characters, got only {alphabet!r}")
    return make_task(
        name,
        _split(tokens, where, options, limits),
        options,
        input_shape=(options.window or WINDOW,),
        classes=len(alphabet),
        alphabet=alphabet,
        checksum=hashlib.sha256(text.encode()).hexdigest(),
        notes=(f"{len(tokens)} characters, {len(alphabet)} different ones",),
    )


def load_topics(options: Options) -> Task:
    """Load the topics of Python's documentation, ignoring ``data_dir``, which may be set for other data sets."""
    return load_characters(options.model_copy(update={"data_dir": None}))


def load_stdlib(options: Options) -> Task:
    """Load the source of Python's standard library without its tests: eleven million characters.

    The files are sorted by the hashes of their paths, so that each split has files of all kinds. Only ASCII files are
    included. ``train_limit`` is the number of windows in an epoch and in the test, ``validation_size`` the number in
    the validation. They are drawn from the whole split, so each epoch has different windows.
    """
    whole = options.model_copy(update={"train_limit": None, "validation_size": None})
    limits = {"train": options.train_limit, "validation": options.validation_size, "test": options.train_limit}
    where = f"the standard library of Python {platform.python_version()}"
    return _as_task("stdlib", _stdlib_text(), where, whole, **limits)


@cache
def _stdlib_text() -> str:
    root = Path(sysconfig.get_path("stdlib"))
    sources = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    names = [name for name in sources if not OUTSIDE.search(name)]
    names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    contents = (sources[name].read_bytes() for name in names)
    return "\n".join(content.decode() for content in contents if content.isascii())


def encode(text: str) -> tuple[str, Tensor]:
    """Return the distinct characters of a text, sorted, and the index of each character among them.

    >>> encode("banana")
    ('abn', tensor([1, 0, 2, 0, 2, 0], dtype=torch.int32))
    """
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    alphabet = np.flatnonzero(np.bincount(points))
    places = np.zeros(alphabet[-1] + 1 if len(alphabet) else 0, dtype=np.int32)
    places[alphabet] = np.arange(len(alphabet))
    return "".join(map(chr, alphabet.tolist())), torch.from_numpy(places[points])


def _split(tokens: Tensor, where: str, options: Options, limits: dict[str, int | None]) -> dict[str, CharacterSplit]:
    window = options.window or WINDOW
    test = len(tokens) // 10
    validation = test if options.validation_size is None else options.validation_size * window + 1
    train = len(tokens) - test - validation
    if min(test, validation, train) <= window:
        raise DataError(
            f"{where} has {len(tokens)} characters, which leaves {max(train, 0)} for training, {validation} for "
            f"validation and {test} for the test; each needs at least {window + 1}, one more than a window. Give a "
            "longer text, or a smaller window or validation_size (in windows)"
        )
    if options.train_limit is not None:
        train = min(train, options.train_limit * window + 1)
    parts = {"train": tokens[:train], "validation": tokens[-test - validation : -test], "test": tokens[-test:]}
    return {name: CharacterSplit(part, window, (where,), limits.get(name)) for name, part in parts.items()}


def _read(data_dir: Path) -> tuple[str, str]:
    path = find_path("text", data_dir, wanted="a text file", is_folder=False)
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")  # drops a byte order mark
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} must be text in UTF-8: byte {error.start} is 0x{content[error.start]:02x}, {error.reason}"
        ) from error
    if not text:
        raise DataError(f"{path} is empty; it must hold text")
    return text, str(path)
