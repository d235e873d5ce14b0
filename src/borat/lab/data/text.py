"""SNLI: pairs of sentences, and whether the first entails, leaves open or contradicts the second."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from borat.lab.data.decode import read_labels
from borat.lab.data.errors import DataError, SchemaError
from borat.lab.data.glove import embedding_matrix, read_vectors
from borat.lab.data.noise import any_class, switch_labels
from borat.lab.data.options import Options
from borat.lab.data.source import ArrowTable, Hub, Source, open_split
from borat.lab.data.splits import hold_out, limit
from borat.lab.data.task import Description, MemorySplit, Task

HUB = Hub("stanfordnlp/snli")
CLASSES = 3
COLUMNS = {"premise": "string", "hypothesis": "string", "label": "integer"}
MARKS = ("<pad>", "<unk>", "<s>", "</s>")
"""Padding, unknown words, begin and end of a sentence; the first four of every vocabulary."""

_TOKEN = re.compile(r"\w+|[^\w\s]")


def tokenize(sentence: str) -> list[str]:
    """Lower-case words: runs of letters, digits and underscores; any other character but a space is one by itself.

    >>> tokenize("It's 2 o'clock, Bob.")
    ['it', "'", 's', '2', 'o', "'", 'clock', ',', 'bob', '.']
    """
    return _TOKEN.findall(sentence.lower())


@dataclass(eq=False)
class Sentences:
    """Sentences of different lengths, one after the other in a single tensor."""

    tokens: Tensor
    starts: Tensor
    lengths: Tensor

    @classmethod
    def encode(cls, sentences: Iterable[Sequence[str]], index: dict[str, int]) -> Sentences:
        """Number the words, between the marks of begin and end."""
        unknown, begin, end = (MARKS.index(mark) for mark in MARKS[1:])
        coded = [[begin, *(index.get(word, unknown) for word in words), end] for words in sentences]
        lengths = torch.tensor([len(words) for words in coded])
        tokens = np.fromiter((number for words in coded for number in words), np.int32, int(lengths.sum()))
        return cls(torch.from_numpy(tokens), lengths.cumsum(0) - lengths, lengths)

    def pad(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Some of the sentences, (sentences, longest), with 0 after their end, and their lengths."""
        starts, lengths = self.starts[indices], self.lengths[indices]
        places = torch.arange(int(lengths.max()), device=lengths.device)
        inside = places < lengths[:, None]
        tokens = self.tokens[torch.where(inside, starts[:, None] + places, 0)].long()
        return torch.where(inside, tokens, 0), lengths

    def to(self, device: torch.device | str) -> Sentences:
        return Sentences(self.tokens.to(device), self.starts.to(device), self.lengths.to(device))


@dataclass(eq=False)
class PairSplit(MemorySplit):
    """Pairs of sentences; the model is called with both, padded, each followed by the lengths."""

    premises: Sentences
    hypotheses: Sentences
    labels: Tensor

    def inputs(self, indices: Tensor, device: torch.device, draw: Any) -> tuple[Tensor, ...]:
        padded = (*self.premises.pad(indices), *self.hypotheses.pad(indices))
        return tuple(tensor.to(device) for tensor in padded)

    def to(self, device: torch.device | str) -> PairSplit:
        return PairSplit(self.premises.to(device), self.hypotheses.to(device), self.labels.to(device))


@dataclass
class Pairs:
    """The words of a split's pairs, and where they are from."""

    premises: list[list[str]]
    hypotheses: list[list[str]]
    labels: Tensor
    sources: tuple[str, ...]
    dropped: int = 0

    def pick(self, indices: Tensor) -> Pairs:
        rows = indices.tolist()
        premises, hypotheses = [self.premises[row] for row in rows], [self.hypotheses[row] for row in rows]
        return Pairs(premises, hypotheses, self.labels[indices], self.sources, self.dropped)

    def words(self) -> Iterable[str]:
        return (word for words in (*self.premises, *self.hypotheses) for word in words)

    def encode(self, index: dict[str, int]) -> PairSplit:
        return PairSplit(Sentences.encode(self.premises, index), Sentences.encode(self.hypotheses, index), self.labels)


def load_snli(options: Options) -> Task:
    """Stanford's natural language inference; pairs without a gold label (label -1) are dropped.

    ``train_split="validation"`` trains on the small validation split, of which a tenth is then held out.

    Without ``glove`` the vocabulary is that of the training sentences. With it, the words of all splits that have a
    vector: the vectors are not trained (InferSent), so a word that only the test has is as good as any other.
    """
    splits = _read_splits(options)
    train = splits["train"]
    train = train.pick(limit(torch.arange(len(train.labels)), options.train_limit))
    train.labels, switched = switch_labels(train.labels, options.label_noise, any_class(CLASSES), options.seed)
    splits = {**splits, "train": train}
    vocabulary, embeddings = _vocabulary(splits, options)
    index = {word: number for number, word in enumerate(vocabulary)}
    description = Description(
        "snli",
        CLASSES,
        input_shape=(),
        sizes={key: len(pairs.labels) for key, pairs in splits.items()},
        label_noise=options.label_noise,
        switched_labels=switched,
        vocabulary_size=len(vocabulary),
        sources={key: pairs.sources for key, pairs in splits.items()},
        notes=tuple(
            f"{source}: {pairs.dropped} pairs without a gold label are left out"
            for source, pairs in {", ".join(pairs.sources): pairs for pairs in splits.values()}.items()
        ),
    )
    ready = {key: pairs.encode(index) for key, pairs in splits.items()}
    return Task(description, ready, options.seed, vocabulary=vocabulary, embeddings=embeddings)


def _read_splits(options: Options) -> dict[str, Pairs]:
    origin = options.train_split or "train"
    if origin not in ("train", "validation"):
        raise DataError(f"train_split must be 'train' or 'validation', got {origin!r}")
    train, test = _read(origin, options), _read("test", options)
    if origin == "train" and options.validation_size is None:
        return {"train": train, "validation": _read("validation", options), "test": test}
    held = len(train.labels) // 10 if options.validation_size is None else options.validation_size
    rest, validation = hold_out(len(train.labels), held, ", ".join(train.sources))
    return {"train": train.pick(rest), "validation": train.pick(validation), "test": test}


def _read(split: str, options: Options) -> Pairs:
    sources = open_split("snli", HUB, split, COLUMNS, options.data_dir)
    pairs = Pairs([], [], torch.empty(0, dtype=torch.int64), tuple(source.where for source in sources))
    labels = []
    for source in sources:
        first = 0
        for table in source.tables():
            chosen = read_labels(source.where, table, "label", CLASSES, first, lowest=-1)
            for column, words in (("premise", pairs.premises), ("hypothesis", pairs.hypotheses)):
                sentences = _sentences(source, table, column)
                words.extend(tokenize(s) for s, label in zip(sentences, chosen, strict=True) if label >= 0)
            labels.append(torch.from_numpy(chosen[chosen >= 0]))
            first += table.num_rows
            pairs.dropped += int((chosen < 0).sum())
    pairs.labels = torch.cat(labels)
    return pairs


def _sentences(source: Source, table: ArrowTable, column: str) -> list[str]:
    if table.column(column).null_count:
        raise SchemaError(f"{source.where}: column {column!r} has rows without a sentence")
    sentences: list[str] = table.column(column).to_pylist()
    return sentences


def _vocabulary(splits: dict[str, Pairs], options: Options) -> tuple[tuple[str, ...], Tensor | None]:
    """The words, most frequent first, after the marks; and their vectors."""
    if options.glove is None:
        counts = Counter(splits["train"].words())
        return MARKS + tuple(word for word, _ in counts.most_common()), None
    counts = Counter(word for pairs in splits.values() for word in pairs.words())
    vectors = read_vectors(options.glove, {*MARKS, *counts})
    vocabulary = MARKS + tuple(word for word, _ in counts.most_common() if word in vectors)
    return vocabulary, embedding_matrix(vocabulary, vectors)
