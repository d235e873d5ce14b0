"""Language models: compared by their loss, resumed bit for bit."""

from __future__ import annotations

import math
import os
import random
import signal
from itertools import pairwise

import pytest
import torch
from typer.testing import CliRunner

from borat.lab.cli import app
from borat.lab.config import RunConfig
from borat.lab.store.run import Run
from borat.lab.training.objective import Tally
from borat.lab.training.train import Interrupted, train

SMALL = RunConfig(
    data="text", model="gpt-1-16", window=16, batch_size=8, epochs=3, dropout=0.1, optimizer="borat", lr=1.0
)


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """Words in random order: the characters within a word are predictable, the next word is not."""
    path = tmp_path_factory.mktemp("text") / "letters.txt"
    path.write_text(" ".join(random.Random(0).choices(["bundle", "optimal", "ab", "rät"], k=600)), encoding="utf-8")
    return path


def without_time(metrics):
    return [{k: v for k, v in epoch.items() if k != "seconds"} for epoch in metrics.epochs] + [metrics.result]


@pytest.mark.parametrize("model", ["gpt-1-16", "ngram-4-16"])
def test_resumes_bit_for_bit(tmp_path, letters, model):
    config = SMALL.replace(model=model)
    whole = train(config, tmp_path / "whole", data_dir=letters)
    assert whole.status == "finished"
    for stop in (5, 30):
        seen = 0

        def stop_at(position, tally, batches):
            nonlocal seen
            seen += 1
            if seen == stop:  # noqa: B023 - only called in this iteration
                os.kill(os.getpid(), signal.SIGTERM)

        folder = tmp_path / f"{stop}"
        with pytest.raises(Interrupted):
            train(config, folder, data_dir=letters, listener=stop_at)
        torch.rand(7)
        assert without_time(train(config, folder, data_dir=letters)) == without_time(whole)
        for name in ("last.pt", "best.pt"):
            ours, theirs = (Run(place).load(name)["model"] for place in (folder, tmp_path / "whole"))
            assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_measurements(tmp_path, letters):
    config = SMALL.replace(model="ngram-6-32", epochs=6, dropout=0.0, optimizer="adam", lr=0.01)
    metrics = train(config, tmp_path / "run", data_dir=letters)
    assert set(metrics.result) == {"test_loss", "test_perplexity", "fit_loss", "fit_perplexity"}
    assert not any("accuracy" in key for key in metrics.epochs[0])
    assert metrics.result["test_perplexity"] == pytest.approx(math.exp(metrics.result["test_loss"]))
    assert metrics.result["test_loss"] < 0.9, "a uniform guess among fifteen characters costs 2.7 nats"
    assert metrics.result["test_loss"] > math.log(4) / 8, "words of at most eight characters are unpredictable"


def test_the_best_epoch_has_the_lowest_loss(tmp_path, letters):
    """The learning rate is so large that some epochs increase the loss."""
    metrics = train(
        SMALL.replace(model="ngram-2-8", optimizer="adam", lr=0.5, epochs=6), tmp_path / "run", data_dir=letters
    )
    losses = [epoch["validation_loss"] for epoch in metrics.epochs]
    assert min(losses) != losses[-1], "else the test shows nothing"
    best = Run(tmp_path / "run").load("best.pt")
    assert best["position"]["epoch"] == losses.index(min(losses)) + 1


def test_plateaus_are_plateaus_of_the_loss(tmp_path, letters):
    config = SMALL.replace(model="ngram-2-8", optimizer="adam", lr=0.5, epochs=6, schedule="plateau")
    epochs = train(config, tmp_path / "run", data_dir=letters).epochs
    lowest = math.inf
    for now, after in pairwise(epochs):
        assert after["lr"] == pytest.approx(now["lr"] * (1.0 if now["validation_loss"] < lowest else 0.2))
        lowest = min(lowest, now["validation_loss"])
    assert epochs[-1]["lr"] < 0.5


def test_a_run_cannot_continue_on_another_text(tmp_path, letters):
    with pytest.raises(Interrupted):
        train(SMALL, tmp_path / "run", data_dir=letters, listener=lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    other = tmp_path / "other.txt"
    text = letters.read_text(encoding="utf-8")
    other.write_text(text[::-1], encoding="utf-8")
    with pytest.raises(ValueError, match="holds a run on other data"):
        train(SMALL, tmp_path / "run", data_dir=other)


def test_perplexity_of_a_diverged_run():
    assert Tally(loss=math.inf, examples=1).means()["perplexity"] > 1e300
    assert math.isnan(Tally(loss=math.nan, examples=1).means()["perplexity"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model", "mlp-8"], "model must be gpt or ngram for text, got 'mlp-8'"),
        (["--model", "ngram-2-8", "--loss", "hinge"], "loss must be ce for text"),
        (["--model", "ngram-2-8", "--window", "9999"], "characters"),
        (["--data", "digits", "--model", "gpt-1-8"], "model must take images or vectors for digits"),
        (["--data", "digits", "--window", "8"], "window does not apply to digits"),
    ],
)
def test_mistakes_are_explained(tmp_path, letters, flags, message):
    flags = ["--data", "text", "--data-dir", str(letters), "--out", str(tmp_path / "runs"), *flags]
    result = CliRunner().invoke(app, ["train", *flags], env={"COLUMNS": "160", "TERM": "dumb"})
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())
    assert not (tmp_path / "runs").exists()


def test_the_command(tmp_path, letters):
    flags = ["--model", "ngram-2-8", "--window", "8", "--epochs", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["train", "--data", "text", "--data-dir", str(letters), *flags])
    assert result.exit_code == 0, result.output
    assert "test perplexity" in result.output
