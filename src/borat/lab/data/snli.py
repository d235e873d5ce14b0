"""SNLI: pairs of sentences, labelled as entailment, neutral or contradiction."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from borat.lab.data.errors import DataError, MissingDataError
from borat.lab.data.sampling import Purpose, make_generator
from borat.lab.data.source import Hub, open_split
from borat.lab.data.splits import hold_out, limit
from borat.lab.data.task import MemorySplit, Options, Task, make_task

HUB = Hub("stanfordnlp/snli")
CLASSES = 3
MARKS = ("<pad>", "<unk>", "<s>", "</s>")
"""Padding, unknown word, start and end of a sentence: the first four words of every vocabulary."""
PADDING, UNKNOWN, START, END = range(4)

TOKEN = re.compile(r"\w+|[^\w\s]")


def tokenize(sentence: str) -> list[str]:
    """Split a sentence into words in lower case; a character other than letters, digits, _ and spaces is a word.

    >>> tokenize("It's 2 o'clock, Bob.")
    ['it', "'", 's', '2', 'o', "'", 'clock', ',', 'bob', '.']
    """
    return TOKEN.findall(sentence.lower())


def pad_pairs(tensors: tuple[Tensor, ...], draws: Tensor | None) -> tuple[Tensor, ...]:
    """Trim the padding of a batch of pairs to the longest sentence; return sentences and lengths in turn."""
    inputs = []
    for sentences in tensors:
        lengths = (sentences != PADDING).sum(1)
        inputs += [sentences[:, : int(lengths.max())].long(), lengths]
    return tuple(inputs)


@dataclass
class Corpus:
    """Reader of SNLI's files. Words are numbered in order of appearance, after the marks."""

    options: Options
    numbers: dict[str, int] = field(default_factory=lambda: {mark: number for number, mark in enumerate(MARKS)})
    notes: list[str] = field(default_factory=list)

    def read_splits(self) -> dict[str, MemorySplit]:
        origin, size = self.options.train_split or "train", self.options.validation_size
        if origin not in ("train", "validation"):
            raise DataError(f"train_split must be 'train' or 'validation', got {origin!r}")
        train = self.read(origin)
        if origin == "train" and size is None:
            validation = self.read("validation")
        else:
            train, validation = hold_out(train, size or len(train) // 10)
        return {"train": train, "validation": validation, "test": self.read("test")}

    def read(self, split: str) -> MemorySplit:
        """Read a split, without the pairs that have no gold label (label -1)."""
        sources = open_split("snli", HUB, split, self.options.data_dir)
        labels = torch.tensor([n for source in sources for n in source.read_classes("label", range(-1, CLASSES))])
        premises, hypotheses = (
            self.encode(sentence for source in sources for _, sentence in source.read(column, "strings"))
            for column in ("premise", "hypothesis")
        )
        where = tuple(source.where for source in sources)
        self.notes.append(f"{', '.join(where)}: {int((labels < 0).sum())} pairs without a gold label are left out")
        pairs = MemorySplit(labels, where, (premises, hypotheses), pad_pairs)
        return pairs.pick((labels >= 0).nonzero().flatten())

    def encode(self, sentences: Iterable[str]) -> Tensor:
        """Return the word numbers of each sentence between start and end marks, of shape (sentences, longest)."""
        numbers = self.numbers
        coded = [[numbers.setdefault(word, len(numbers)) for word in tokenize(sentence)] for sentence in sentences]
        padded = np.full((len(coded), max(map(len, coded)) + 2), PADDING, np.int32)
        for row, words in zip(padded, coded, strict=True):
            row[: len(words) + 2] = [START, *words, END]
        return torch.from_numpy(padded)


def load_snli(options: Options) -> Task:
    """Load the Stanford Natural Language Inference corpus.

    With ``train_split="validation"``, it trains on the small validation split and holds out a tenth of it.

    The vocabulary holds the words of the training sentences. With ``glove``, it holds the words of all splits that have
    a vector: InferSent does not train the vectors, so words outside the training sentences are meaningful as well.
    """
    corpus = Corpus(options)
    splits = corpus.read_splits()
    splits["train"] = limit(splits["train"], options.train_limit)
    counted = splits.values() if options.glove else [splits["train"]]
    counts = Counter(number for split in counted for part in split.tensors for number in part[part > END].tolist())
    words, embeddings = list(corpus.numbers), None
    kept = [*range(len(MARKS)), *(number for number, _ in counts.most_common())]
    if options.glove:
        vectors = read_vectors(Path(options.glove).expanduser(), {words[number] for number in kept})
        kept = [number for number in kept if number <= END or words[number] in vectors]
        embeddings = make_embeddings([words[number] for number in kept], vectors)
    renumbered = torch.full((len(words),), UNKNOWN, dtype=torch.int32)
    renumbered[kept] = torch.arange(len(kept), dtype=torch.int32)
    for key, split in splits.items():
        splits[key] = replace(split, tensors=tuple(renumbered[part] for part in split.tensors))
    task = make_task("snli", splits, options, input_shape=(), classes=CLASSES, notes=tuple(corpus.notes))
    return replace(task, vocabulary=tuple(words[number] for number in kept), embeddings=embeddings)


def read_vectors(path: Path, words: Collection[str]) -> dict[str, Tensor]:
    """Read the vectors of ``words`` from a file in GloVe's text format: a word and its numbers on each line."""
    if not path.is_file():
        raise MissingDataError(f"the file of word vectors {path} does not exist; glove must name one in GloVe's format")
    vectors: dict[str, Tensor] = {}
    size = line_number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for line_number, line in enumerate(file, start=1):
                line = line.rstrip("\n ")
                size = line.count(" ") if line_number == 1 else size
                word, *numbers = line.rsplit(" ", size)  # a few words of GloVe contain spaces
                if len(numbers) != size or size == 0:
                    raise ValueError(f"expected a word and {size} numbers")
                if word in words:
                    vectors[word] = torch.from_numpy(np.array(numbers, dtype=np.float32))
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"{path}, line {line_number}: {error}") from error
    if not vectors:
        raise DataError(f"{path} has no vector for any of the {len(words)} words of the data set")
    return vectors


def make_embeddings(vocabulary: Sequence[str], vectors: dict[str, Tensor]) -> Tensor:
    """Return a matrix with a row for each word: zero for padding, random for the other marks without a vector."""
    known = torch.stack(list(vectors.values()))
    generator = make_generator(Purpose.EMBEDDING, 0)
    size, std, rest = known.shape[1], known.std(), vocabulary[1:]
    rows = [vectors[word] if word in vectors else torch.randn(size, generator=generator) * std for word in rest]
    return torch.stack([torch.zeros(size), *rows])
