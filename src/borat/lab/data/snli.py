"""SNLI: pairs of sentences, labelled by whether the first entails, leaves open or contradicts the second."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from borat.lab.data.errors import CorruptFileError, DataError, MissingDataError
from borat.lab.data.options import Options
from borat.lab.data.sampling import Purpose, make_generator
from borat.lab.data.source import Hub, open_split
from borat.lab.data.task import MemorySplit, Task, hold_out, limit, make_task

HUB = Hub("stanfordnlp/snli")
CLASSES = 3
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
class PairSplit(MemorySplit):
    """Pairs of sentences; the model is called with both, padded, each followed by the lengths."""

    premises: Tensor
    hypotheses: Tensor
    dropped: int = 0
    """Number of pairs left out because they have no gold label."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        return ()

    def inputs(self, indices: Tensor, draws: Any) -> tuple[Tensor, ...]:
        padded = []
        for sentences in (self.premises[indices], self.hypotheses[indices]):
            lengths = (sentences != PADDING).sum(1)
            padded += [sentences[:, : int(lengths.max())].long(), lengths]
        return tuple(padded)

    def words(self) -> list[int]:
        """Return the numbers of all words, sentence by sentence, without marks."""
        return [number for part in (self.premises, self.hypotheses) for number in part[part > END].tolist()]


def load_snli(options: Options) -> Task:
    """Load the Stanford Natural Language Inference corpus, without the pairs that have no gold label (label -1).

    ``train_split="validation"`` trains on the small validation split, of which a tenth is then held out.

    The vocabulary holds the words of the training sentences. With ``glove``, it holds the words of all splits that have
    a vector: InferSent does not train the vectors, so a word that occurs in no training sentence has its meaning, too.
    """
    numbers = {mark: number for number, mark in enumerate(MARKS)}
    splits = _read_splits(options, numbers)
    splits["train"] = limit(splits["train"], options.train_limit)
    counted = splits.values() if options.glove else [splits["train"]]
    counts = Counter(number for split in counted for number in split.words())
    words, embeddings = list(numbers), None
    kept = [*range(len(MARKS)), *(number for number, _ in counts.most_common())]
    if options.glove:
        vectors = read_vectors(options.glove, {words[number] for number in kept})
        kept = [number for number in kept if number <= END or words[number] in vectors]
        embeddings = make_embeddings([words[number] for number in kept], vectors)
    renumbered = torch.full((len(words),), UNKNOWN, dtype=torch.int32)
    renumbered[kept] = torch.arange(len(kept), dtype=torch.int32)
    for key, split in splits.items():
        premises, hypotheses = renumbered[split.premises], renumbered[split.hypotheses]
        splits[key] = replace(split, premises=premises, hypotheses=hypotheses)
    dropped = {", ".join(split.sources): split.dropped for split in splits.values()}
    return make_task(
        "snli",
        splits,
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
    labels = torch.tensor([n for source in sources for n in source.read_classes("label", range(-1, CLASSES))])
    premises, hypotheses = (
        encode((s for source in sources for _, s in source.read(column, "strings")), numbers)
        for column in ("premise", "hypothesis")
    )
    where = tuple(source.where for source in sources)
    pairs = PairSplit(labels, where, premises, hypotheses, dropped=int((labels < 0).sum()))
    return pairs.pick((labels >= 0).nonzero().flatten())


def encode(sentences: Iterable[str], numbers: dict[str, int]) -> Tensor:
    """Return the numbers of the words of each sentence, between start and end; new words are added to ``numbers``."""
    coded = [[numbers.setdefault(word, len(numbers)) for word in tokenize(sentence)] for sentence in sentences]
    padded = np.full((len(coded), max(map(len, coded)) + 2), PADDING, np.int32)
    for row, words in zip(padded, coded, strict=True):
        row[: len(words) + 2] = [START, *words, END]
    return torch.from_numpy(padded)


def read_vectors(path: Path, words: Collection[str]) -> dict[str, Tensor]:
    """Read the vectors of ``words`` from a file in GloVe's format: a word and its numbers on each line."""
    if not path.is_file():
        raise MissingDataError(f"the file of word vectors {path} does not exist; it should be in GloVe's text format")
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
        raise CorruptFileError(f"{path}, line {line_number}: {error}") from error
    if not vectors:
        raise CorruptFileError(f"{path} has a vector for none of the {len(words)} words of the data set")
    return vectors


def make_embeddings(vocabulary: Sequence[str], vectors: dict[str, Tensor]) -> Tensor:
    """Return a matrix with a row for each word: zero for padding, random for the other marks without a vector."""
    known = torch.stack(list(vectors.values()))
    generator = make_generator(Purpose.EMBEDDING, 0)
    rows = [torch.zeros(known.shape[1])]
    for word in vocabulary[1:]:
        random = torch.randn(known.shape[1], generator=generator) * known.std() if word not in vectors else None
        rows.append(vectors[word] if random is None else random)
    return torch.stack(rows)
