"""Text as characters: splits, windows, and errors."""

from __future__ import annotations

import random

import pytest
import torch

from borat.lab.config import RunConfig
from borat.lab.data import load
from borat.lab.data.characters import NO_LABEL
from borat.lab.data.errors import DataError, MissingDataError
from borat.lab.training.objective import Tally, make_objective

LETTERS = "".join(random.Random(0).choices("abc déß\n", k=1003))


@pytest.fixture
def task(tmp_path):
    (tmp_path / "letters.txt").write_text(LETTERS, encoding="utf-8")
    return load("text", data_dir=tmp_path / "letters.txt", window=10)


def spell(task, tokens) -> str:
    return "".join(task.description.alphabet[int(token)] for token in tokens)


def test_parts_follow_each_other(task):
    assert task.description.alphabet == "\n abcdßé"
    assert task.description.num_classes == 8
    assert task.description.input_shape == (10,)
    assert "".join(spell(task, task.split(name).tokens) for name in ("train", "validation", "test")) == LETTERS
    assert task.description.sizes == {"train": 80, "validation": 9, "test": 9}


def test_evaluation_reads_from_the_beginning(task):
    (batch,) = task.batches("validation", 100)
    text = spell(task, task.split("validation").tokens)
    assert spell(task, batch.inputs[0].flatten()[:99]) == text[:99]
    assert spell(task, batch.labels.flatten()[:99]) == text[1:]
    assert (batch.labels.flatten()[99:] == NO_LABEL).all()
    assert batch.labels.dtype == torch.int64


def test_each_epoch_has_other_windows_that_do_not_overlap(task):
    split = task.split("train")
    split.tokens = torch.arange(len(split.tokens), dtype=torch.int32)  # each character is its place
    cuts = set()
    for epoch in range(3):
        batches = list(task.batches("train", 7, epoch=epoch))
        inputs, labels = (torch.cat(parts) for parts in zip(*((b.inputs[0], b.labels) for b in batches), strict=True))
        assert torch.equal(labels, (inputs + 1) % len(split.tokens)), "the next one; the text is a ring"
        assert len(labels.unique()) == labels.numel() == 800
        cuts.add(int(inputs[0, 0]) % 10)
    assert len(cuts) > 1


def test_an_epoch_resumes_at_any_batch(task):
    whole = list(task.batches("train", 7, epoch=3))
    rest = list(task.to("cpu").batches("train", 7, epoch=3, start=4))
    assert len(whole) == len(rest) + 4 == task.num_batches("train", 7)
    for ours, theirs in zip(rest, whole[4:], strict=True):
        assert torch.equal(ours.labels, theirs.labels)
    halves = [list(task.batches("train", 7, epoch=3, rank=rank, world_size=2)) for rank in (0, 1)]
    together = torch.cat([halves[0][0].labels, halves[1][0].labels])
    assert {tuple(row) for row in together.tolist()} == {tuple(row) for row in whole[0].labels.tolist()}


def test_limited_sizes(tmp_path):
    (tmp_path / "letters.txt").write_bytes(b"\xef\xbb\xbf" + LETTERS.encode())
    task = load("text", data_dir=tmp_path / "letters.txt", window=10, train_limit=5, validation_size=3)
    assert task.description.sizes == {"train": 5, "validation": 3, "test": 9}
    assert "\ufeff" not in task.description.alphabet


def test_the_default_is_pythons_documentation():
    task = load("text")
    assert task.description.sizes["train"] > 4000
    assert "lambda" in spell(task, task.split("train").tokens)


@pytest.mark.parametrize(
    ("content", "options", "kind", "message"),
    [
        (b"", {}, DataError, "letters.txt is empty; it must hold text"),
        (b"caf\xe9 au lait" * 100, {}, DataError, "letters.txt must be text in UTF-8: byte 3 is 0xe9"),
        (b"a" * 1000, {}, DataError, "at least two different characters, got only 'a'"),
        (
            b"ab" * 300,
            {},
            DataError,
            "has 600 characters, which leaves 480 for training, 60 for validation and 60 for the test; each .* 65",
        ),
        (
            b"ab" * 1000,
            {"validation_size": 40},
            DataError,
            "leaves 0 for training, 2561 for validation .* or a smaller window or validation_size",
        ),
        (b"\xef\xbb\xbf", {}, DataError, "is empty; it must hold text"),
        (b"ab" * 1000, {"window": 0}, ValueError, "window must be at least 1"),
        (b"ab" * 1000, {"label_column": "a"}, ValueError, "label_column does not apply to text"),
    ],
)
def test_bad_texts(tmp_path, content, options, kind, message):
    (tmp_path / "letters.txt").write_bytes(content)
    with pytest.raises(kind, match=message):
        load("text", data_dir=tmp_path / "letters.txt", **options)


def test_missing_file(tmp_path):
    with pytest.raises(MissingDataError, match=r"nowhere.txt does not exist; data_dir must be a text file for text"):
        load("text", data_dir=tmp_path / "nowhere.txt")
    with pytest.raises(DataError, match="data_dir must be a text file for text, got the folder"):
        load("text", data_dir=tmp_path)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_every_character_is_measured_once(task, split):
    """Including those of the last, incomplete window."""
    tokens = task.splits[split].tokens
    assert (len(tokens) - 1) % 10, "there is such a window"
    batches = list(task.batches(split, 7, shuffle=False))
    labels = torch.cat([batch.labels.flatten() for batch in batches])
    assert torch.equal(labels[labels >= 0], tokens[1:].long())
    halves = [b.labels for rank in (0, 1) for b in task.batches(split, 7, shuffle=False, rank=rank, world_size=2)]
    assert sum(int((labels >= 0).sum()) for labels in halves) == len(tokens) - 1


def test_a_loss_is_a_mean_over_characters(task):
    """The incomplete window is weighted by its length."""
    classes = task.description.num_classes
    objective = make_objective(RunConfig(data="text"), task.description)
    scores = torch.randn(classes, classes, generator=torch.Generator().manual_seed(0))
    tally = Tally()
    for batch in task.batches("test", 3, shuffle=False):
        loss = objective.loss(scores[batch.inputs[0]], batch.labels)
        tally.add(objective.measure(scores, batch.labels, loss.item()))
    tokens = task.splits["test"].tokens.long()
    whole = torch.nn.functional.cross_entropy(scores[tokens[:-1]], tokens[1:])
    assert tally.means()["loss"] == pytest.approx(whole.item(), rel=1e-5)


def test_the_standard_library_is_drawn_from_anew_in_each_epoch():
    task = load("stdlib", window=16, train_limit=40, validation_size=10)
    assert task.description.sizes == {"train": 40, "validation": 10, "test": 40}
    assert len(task.split("train").tokens) > 1_000_000
    assert task.description.alphabet.isascii()
    first, again, other = (torch.cat([b.labels for b in task.batches("train", 8, epoch=e)]) for e in (0, 0, 1))
    assert first.shape == other.shape == (40, 16)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    (batch,) = task.batches("test", 100)
    tokens = task.split("test").tokens
    assert torch.equal(batch.inputs[0][0], tokens[:16].long())
    assert (batch.labels != NO_LABEL).all(), "equally spaced windows, none of them incomplete"
    assert len({spell(task, window) for window in batch.inputs[0]}) > 35
