"""SNLI: pairs of sentences, labelled by whether the first entails, leaves open or contradicts the second."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from borat.lab.data.errors import CorruptFileError, DataError, MissingDataError, SchemaError
from borat.lab.data.options import Options
from borat.lab.data.sampling import Purpose, make_generator
from borat.lab.data.source import Hub, Source, open_split
from borat.lab.data.task import MemorySplit, Task, hold_out, limit, make_task

HUB = Hub("stanfordnlp/snli")
CLASSES = 3
COLUMNS = {"premise": "string", "hypothesis": "string", "label": "integer"}
MARKS = ("<pad>", "<unk>", "<s>", "</s>")
"""Padding, unknown word, start and end of a sentence: the first four words of every vocabulary."""
PADDING, UNKNOWN, START, END = range(4)

TOKEN = re.compile(r"\w+|[^\w\s]")


def tokenize(sentence: str) -> list[str]:
    """Return the lower-case words of a sentence; any character but letters, digits, _ and spaces is one by itself.

    >>> tokenize("It's 2 o'clock, Bob.")
    ['it', "'", 's', '2', 'o', "'", 'clock', ',', 'bob', '.']
    """
    return TOKEN.findall(sentence.lower())


@dataclass(eq=False)
class Sentences:
    """Sentences of different lengths, concatenated in one tensor of word numbers."""

    tokens: Tensor
    starts: Tensor
    lengths: Tensor

    @classmethod
    def encode(cls, sentences: Iterable[str], numbers: dict[str, int]) -> Sentences:
        """Number the words of sentences between start and end marks; new words are added to ``numbers``."""
        coded = [
            [START, *(numbers.setdefault(word, len(numbers)) for word in tokenize(sentence)), END]
            for sentence in sentences
        ]
        lengths = torch.tensor([len(words) for words in coded])
        tokens = np.fromiter(chain.from_iterable(coded), np.int32, int(lengths.sum()))
        return cls(torch.from_numpy(tokens), lengths.cumsum(0) - lengths, lengths)

    def words(self) -> Iterator[int]:
        """Yield the numbers of all words, sentence by sentence, without marks."""
        tokens = self.tokens.tolist()
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            yield from tokens[start + 1 : start + length - 1]

    def pad(self) -> tuple[Tensor, Tensor]:
        """Return the sentences as a tensor, (sentences, longest), with padding after their end, and their lengths."""
        places = torch.arange(int(self.lengths.max()), device=self.lengths.device)
        inside = places < self.lengths[:, None]
        tokens = self.tokens[torch.where(inside, self.starts[:, None] + places, 0)].long()
        return torch.where(inside, tokens, PADDING), self.lengths

    def __getitem__(self, indices: Tensor) -> Sentences:
        return Sentences(self.tokens, self.starts[indices], self.lengths[indices])

    def to(self, device: torch.device | str) -> Sentences:
        return Sentences(self.tokens.to(device), self.starts.to(device), self.lengths.to(device))


@dataclass(eq=False)
class PairSplit(MemorySplit):
    """Pairs of sentences; the model is called with both, padded, each followed by the lengths."""

    premises: Sentences
    hypotheses: Sentences
    dropped: int = 0
    """Number of pairs left out because they have no gold label."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        return ()

    def inputs(self, indices: Tensor, draws: Any) -> tuple[Tensor, ...]:
        return (*self.premises[indices].pad(), *self.hypotheses[indices].pad())

    def renumber(self, numbers: Tensor) -> PairSplit:
        """Replace each word number by its entry in ``numbers``."""
        premises, hypotheses = (replace(s, tokens=numbers[s.tokens]) for s in (self.premises, self.hypotheses))
        return replace(self, premises=premises, hypotheses=hypotheses)


def load_snli(options: Options) -> Task:
    """Load the Stanford Natural Language Inference corpus, without the pairs that have no gold label (label -1).

    ``train_split="validation"`` trains on the small validation split, of which a tenth is then held out.

    The vocabulary holds the words of the training sentences. With ``glove``, it holds the words of all splits that have
    a vector: InferSent does not train the vectors, so a word that occurs in no training sentence has its meaning, too.
    """
    numbers = {mark: number for number, mark in enumerate(MARKS)}
    splits = _read_splits(options, numbers)
    splits["train"] = limit(splits["train"], options.train_limit)
    words, embeddings = list(numbers), None
    counted = splits.values() if options.glove else [splits["train"]]
    counts = Counter(
        number for split in counted for part in (split.premises, split.hypotheses) for number in part.words()
    )
    kept = [*range(len(MARKS)), *(number for number, _ in counts.most_common())]
    if options.glove:
        vectors = read_vectors(options.glove, {words[number] for number in kept})
        kept = [number for number in kept if number < len(MARKS) or words[number] in vectors]
        embeddings = make_embeddings([words[number] for number in kept], vectors)
    renumbered = torch.full((len(words),), UNKNOWN, dtype=torch.int32)
    renumbered[kept] = torch.arange(len(kept), dtype=torch.int32)
    dropped = {", ".join(split.sources): split.dropped for split in splits.values()}
    return make_task(
        "snli",
        {key: split.renumber(renumbered) for key, split in splits.items()},
        options,
        classes=CLASSES,
        vocabulary=tuple(words[number] for number in kept),
        embeddings=embeddings,
        notes=tuple(f"{where}: {count} pairs without a gold label are left out" for where, count in dropped.items()),
    )


def _read_splits(options: Options, numbers: dict[str, int]) -> dict[str, PairSplit]:
    origin = options.train_split or "train"
    if origin not in ("train", "validation"):
        raise DataError(f"train_split must be 'train' or 'validation', got {origin!r}")
    train = _read(origin, options, numbers)
    if origin == "train" and options.validation_size is None:
        validation = _read("validation", options, numbers)
    else:
        train, validation = hold_out(train, options.validation_size or len(train) // 10)
    return {"train": train, "validation": validation, "test": _read("test", options, numbers)}


def _read(split: str, options: Options, numbers: dict[str, int]) -> PairSplit:
    sources = open_split("snli", HUB, split, options.data_dir)
    for source in sources:
        source.check(COLUMNS)
    labels = torch.tensor([label for source in sources for label in source.read_labels("label", range(-1, CLASSES))])
    premises, hypotheses = (
        Sentences.encode(chain.from_iterable(_sentences(source, column) for source in sources), numbers)
        for column in ("premise", "hypothesis")
    )
    where = tuple(source.where for source in sources)
    pairs = PairSplit(labels, where, premises, hypotheses, dropped=int((labels < 0).sum()))
    return pairs.pick((labels >= 0).nonzero().flatten())


def _sentences(source: Source, column: str) -> Iterator[str]:
    for row, sentence in enumerate(source.read(column)):
        if sentence is None:
            raise SchemaError(f"{source.where}: column {column!r}, row {row} has no sentence")
        yield sentence


def read_vectors(path: Path, words: Collection[str]) -> dict[str, Tensor]:
    """Read the vectors of ``words`` from a file in GloVe's format: a word and its numbers on each line."""
    if not path.is_file():
        raise MissingDataError(f"the file of word vectors {path} does not exist; it should be in GloVe's text format")
    vectors: dict[str, Tensor] = {}
    size = 0
    for line_number, line in enumerate(_lines(path), start=1):
        size = size or line.count(" ")
        word, *numbers = line.rsplit(" ", size)  # from the right: a few words of GloVe contain spaces
        if len(numbers) != size or size == 0:
            raise CorruptFileError(f"{path}, line {line_number}: expected a word and {size} numbers")
        if word in words:
            try:
                vectors[word] = torch.from_numpy(np.array(numbers, dtype=np.float32))
            except ValueError as error:
                raise CorruptFileError(f"{path}, line {line_number}: {error}") from error
    if not vectors:
        raise CorruptFileError(f"{path} has a vector for none of the {len(words)} words of the data set")
    return vectors


def _lines(path: Path) -> Iterator[str]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for line in file:
                yield line.rstrip("\n ")
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
        raise CorruptFileError(f"{path} cannot be read as text: {error}") from error


def make_embeddings(vocabulary: Iterable[str], vectors: dict[str, Tensor]) -> Tensor:
    """Return a matrix with a row for each word: zero for padding, random for the other marks without a vector."""
    known = torch.stack(list(vectors.values()))
    generator = make_generator(Purpose.EMBEDDING, 0)
    rows = [torch.zeros(known.shape[1])]
    for word in list(vocabulary)[1:]:
        if word in vectors:
            rows.append(vectors[word])
        else:
            rows.append(torch.randn(known.shape[1], generator=generator) * known.std())
    return torch.stack(rows)
