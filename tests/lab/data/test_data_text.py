"""SNLI: tokens, vocabulary, word vectors and padded batches."""

from __future__ import annotations

import gzip

import pytest
import torch

from borat.lab.data import load
from borat.lab.data.snli import MARKS, tokenize
from data_files import write_pairs

TRAIN = [
    ("A man walks.", "A man moves!", 0),
    ("Two dogs", "It's a cat", 2),
    ("gone", "gone", -1),
    ("A man", "walks", 1),
]
VALIDATION = [("A zebra walks", "man", 1)] * 10 + [("x", "y", -1)]
TEST = [("dogs", "a man", 2)]


@pytest.fixture
def snli(tmp_path):
    for split, pairs in (("train", TRAIN), ("validation", VALIDATION), ("test", TEST)):
        write_pairs(tmp_path / f"{split}-00000-of-00001.parquet", pairs)
    return tmp_path


def sentences(task, split, **options):
    """Return the words of all pairs and the labels."""
    found = []
    for batch in task.batches(split, 2, shuffle=False, **options):
        for row, label in enumerate(batch.labels.tolist()):
            words = []
            for tokens, lengths in (batch.inputs[:2], batch.inputs[2:]):
                length = int(lengths[row])
                assert not tokens[row, length:].any()  # padding
                words.append([task.vocabulary[i] for i in tokens[row, :length].tolist()])
            found.append((*words, label))
    return found


def test_tokens():
    assert tokenize("A  man's\t(red) hat, 2x.") == ["a", "man", "'", "s", "(", "red", ")", "hat", ",", "2x", "."]
    assert tokenize("") == []


def test_pairs(snli):
    task = load("snli", data_dir=snli)
    assert task.description.sizes == {"train": 3, "validation": 10, "test": 1}
    assert task.description.num_classes == 3
    assert any("1 pairs without a gold label" in note for note in task.description.notes)
    begin, end = "<s>", "</s>"
    assert sentences(task, "train")[:2] == [
        ([begin, "a", "man", "walks", ".", end], [begin, "a", "man", "moves", "!", end], 0),
        ([begin, "two", "dogs", end], [begin, "it", "'", "s", "a", "cat", end], 2),
    ]
    assert task.vocabulary[:6] == (*MARKS, "a", "man")  # the most frequent first
    assert "gone" not in task.vocabulary
    assert "zebra" not in task.vocabulary  # of the training sentences only
    assert sentences(task, "validation")[0] == ([begin, "a", "<unk>", "walks", end], [begin, "man", end], 1)


def test_batches_hold_padded_tokens_and_lengths(snli):
    task = load("snli", data_dir=snli)
    batch = next(task.batches("train", 3, shuffle=False))
    premise, premise_lengths, hypothesis, hypothesis_lengths = batch.inputs
    assert (premise.shape, hypothesis.shape) == ((3, 6), (3, 7))
    assert premise_lengths.tolist() == [6, 4, 4]
    assert hypothesis_lengths.tolist() == [6, 7, 3]
    assert premise.dtype == batch.labels.dtype == torch.int64
    straight = list(task.batches("train", 1, epoch=2))
    resumed = list(task.to("cpu").batches("train", 1, epoch=2, start=1))
    assert [len(b.labels) for b in straight] == [1, 1, 1]
    for first, second in zip(straight[1:], resumed, strict=True):
        assert all(map(torch.equal, first.inputs, second.inputs))


def test_training_on_the_validation_split(snli):
    (snli / "train-00000-of-00001.parquet").unlink()
    task = load("snli", data_dir=snli, train_split="validation")
    assert task.description.sizes == {"train": 9, "validation": 1, "test": 1}
    assert "zebra" in task.vocabulary
    assert "valid" in task.description.sources["train"][0]


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_word_vectors(snli, suffix):
    path = snli / f"glove{suffix}"
    content = b"a 0.5 -1 2\nzebra 1 1 1\nman 1 2 3\nunused 9 9 9\n. . . 4 5 6\n<s> 7 7 7\n"
    path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    task = load("snli", data_dir=snli, glove=str(path))
    assert task.vocabulary[:4] == MARKS
    assert set(task.vocabulary[4:]) == {"a", "man", "zebra"}
    assert task.embeddings is not None
    rows = dict(zip(task.vocabulary, task.embeddings.tolist(), strict=True))
    assert rows["a"] == [0.5, -1.0, 2.0]
    assert rows["zebra"] == [1.0, 1.0, 1.0]  # a word of the validation split
    assert rows["<s>"] == [7.0, 7.0, 7.0]
    assert rows["<pad>"] == [0.0, 0.0, 0.0]
    assert any(rows["<unk>"])
    again = load("snli", data_dir=snli, glove=str(path))
    assert torch.equal(task.embeddings, again.embeddings)


def test_noise_and_limit(snli):
    noisy = load("snli", data_dir=snli, label_noise=1.0)
    assert noisy.description.switched_labels == 3
    assert all(label != clean for (*_, label), clean in zip(sentences(noisy, "train"), [0, 2, 1], strict=True))
    assert load("snli", data_dir=snli, train_limit=2).description.sizes["train"] == 2
