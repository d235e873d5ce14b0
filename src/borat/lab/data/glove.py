"""Word vectors from a text file in GloVe's format: a word and its numbers on each line, separated by spaces."""

from __future__ import annotations

import gzip
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from borat.lab.data.errors import CorruptFileError, MissingDataError
from borat.lab.data.randomness import Purpose, generator


def read_vectors(path: Path, words: Collection[str]) -> dict[str, Tensor]:
    """The vectors of those ``words`` that the file has. Only these are kept: the file holds up to 2 million."""
    if not path.is_file():
        raise MissingDataError(f"the file of word vectors {path} does not exist; it should be in GloVe's text format")
    wanted = set(words)
    vectors: dict[str, Tensor] = {}
    size = 0
    for number, line in enumerate(_lines(path), start=1):
        size = size or line.count(" ")
        word, *numbers = line.rsplit(" ", size)  # from the right: a few words of GloVe contain spaces
        if len(numbers) != size or size == 0:
            raise CorruptFileError(f"{path}, line {number}: expected a word and {size} numbers")
        if word in wanted:
            try:
                vectors[word] = torch.from_numpy(np.array(numbers, dtype=np.float32))
            except ValueError as error:
                raise CorruptFileError(f"{path}, line {number}: {error}") from error
    if not vectors:
        raise CorruptFileError(f"{path} has a vector for none of the {len(wanted)} words of the data set")
    return vectors


def _lines(path: Path) -> Iterator[str]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for line in file:
                yield line.rstrip("\n ")
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
        raise CorruptFileError(f"{path} cannot be read as text: {error}") from error


def embedding_matrix(vocabulary: tuple[str, ...], vectors: dict[str, Tensor]) -> Tensor:
    """A row for each word of ``vocabulary``.

    The first, padding, is zero. Marks that the file does not have get random vectors of the same spread as the others.
    """
    known = torch.stack(list(vectors.values()))
    source = generator(Purpose.EMBEDDING, 0)
    rows = [torch.zeros(known.shape[1])]
    for word in vocabulary[1:]:
        other = torch.randn(known.shape[1], generator=source) * known.std() if word not in vectors else vectors[word]
        rows.append(other)
    return torch.stack(rows)
