"""The table of runs, and configurations with paths."""

from __future__ import annotations

import math

import pytest

import fabricate
from borat.lab import read_runs
from borat.lab.config import RunConfig
from borat.lab.store.run import Metrics, Run


def test_a_row_for_each_run(tmp_path):
    finished = fabricate.write_run(tmp_path / "a", RunConfig(optimizer="borat", radius=50.0, epochs=4), accuracy=0.75)
    config = RunConfig(optimizer="sgd", schedule="cosine", epochs=4, train_limit=600)
    fabricate.write_run(tmp_path / "deep", config, accuracy=0.5, status="diverged")
    runs = read_runs(str(tmp_path))
    assert list(runs.index) == [f"a/{finished.path.name}", f"deep/{config.digest}"]
    assert list(runs.method) == ["BORAT3", "SGD, cosine"]
    assert list(runs.status) == ["finished", "diverged"]
    assert list(runs.epochs_done) == [4, 2]
    assert runs.seconds.sum() == pytest.approx(6 * 1.5)
    first, second = runs.itertuples()
    assert (first.radius, first.test_accuracy, first.accuracy) == (50.0, 0.75, 0.75)
    assert math.isnan(second.radius)
    assert math.isnan(second.train_loss), "the loss was not finite"
    assert second.train_limit == 600
    assert [epoch["epoch"] for epoch in first.history] == [0, 1, 2, 3]
    assert list(runs.config) == [RunConfig(optimizer="borat", radius=50.0, epochs=4), config]


def test_a_run_without_a_test_split_and_one_that_has_not_ended(tmp_path):
    epoch = {"epoch": 0, "seconds": 1.0, "train_loss": 0.5, "validation_accuracy": 0.6}
    for lr, status, result in ((0.1, "finished", {"validation_accuracy": 0.7}), (1.0, "running", {})):
        config = RunConfig(lr=lr)
        Run.create(tmp_path / config.digest, config).write_metrics(Metrics(status, [epoch], result))
    runs = read_runs(tmp_path).sort_values("lr")
    assert runs.accuracy.tolist() == pytest.approx([0.7, math.nan], nan_ok=True)
    assert runs.validation_accuracy.tolist() == [0.7, 0.6]
    assert "test_accuracy" not in runs


def test_unreadable_runs_are_reported(tmp_path):
    good = fabricate.write_run(tmp_path, RunConfig(epochs=2), accuracy=0.5)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text("{")
    with pytest.warns(UserWarning, match="odd holds no run of borat"):
        assert list(read_runs(tmp_path).index) == [good.path.name]
    assert list(read_runs(tmp_path, [good.path.name]).index) == [good.path.name]
    with pytest.raises(ValueError, match="cannot be read"):
        read_runs(tmp_path, ["odd"])
    with pytest.raises(ValueError, match="does not exist"):
        read_runs(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert read_runs(tmp_path / "empty").empty


# Files of word vectors


def test_a_digest_does_not_depend_on_the_location_of_files(tmp_path):
    here, there = RunConfig(glove="/home/me/glove.txt"), RunConfig(glove="vectors/glove.txt")
    assert here.digest == there.digest
    assert len({here.digest, RunConfig(glove="other.txt").digest, RunConfig().digest}) == 3
    Run.create(tmp_path, here)
    Run.create(tmp_path, there)
    with pytest.raises(ValueError, match="another configuration: glove differ"):
        Run.create(tmp_path, RunConfig(glove="other.txt"))
