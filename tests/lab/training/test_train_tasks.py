"""Runs of tasks: from a configuration, into a folder, and from the command line."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from borat.lab import read_runs
from borat.lab.baselines import make_optimizer
from borat.lab.cli import app
from borat.lab.config import Execution, RunConfig
from borat.lab.store.run import Run
from borat.lab.tasks import find_task, run
from borat.lab.training.train import train


def invoke(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_run_is_stored_like_any_other(tmp_path):
    config = RunConfig(task="vae", optimizer="adamw", steps=5, shift=10.0, clip=0.1, schedule="warmup-cosine")
    metrics = train(config, tmp_path / config.digest)
    direct = run(
        find_task("vae"),
        lambda net: make_optimizer(net, config),
        schedule="warmup-cosine",
        steps=5,
        shift=10.0,
        clip=0.1,
    )
    assert metrics.status == "finished"
    assert metrics.result == {"test_loss": direct.score, "validation_loss": direct.validation_score}
    table = read_runs(tmp_path)
    assert table.test_loss.iloc[0] == pytest.approx(direct.score)
    assert (table.task.iloc[0], table["shift"].iloc[0], table.steps.iloc[0]) == ("vae", 10.0, 5)
    stamp = (tmp_path / config.digest / "metrics.json").stat().st_mtime_ns
    train(config, tmp_path / config.digest)
    assert (tmp_path / config.digest / "metrics.json").stat().st_mtime_ns == stamp, "a finished run is not repeated"


def test_a_score_is_stored_as_its_reciprocal_if_higher_is_better(tmp_path):
    pytest.importorskip("gymnasium")
    metrics = train(RunConfig(task="reinforce", optimizer="adamw", steps=2), tmp_path / "run")
    assert metrics.result["test_loss"] == pytest.approx(1.0 / metrics.result["test_return"])


def test_several_devices_are_refused(tmp_path):
    with pytest.raises(ValueError, match="devices must be 1 for a task, got 2"):
        train(RunConfig(task="vae", steps=2), tmp_path / "run", execution=Execution(devices=2))


def test_a_diverged_run_is_recorded(tmp_path):
    metrics = train(RunConfig(task="vae", optimizer="sgd", lr=1e30, steps=5), tmp_path / "run")
    assert metrics.status == Run(tmp_path / "run").metrics.status == "diverged"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"task": "vae", "epochs": 3}, "epochs does not apply to a task, got 3"),
        ({"task": "vae", "data": "csv"}, "data does not apply to a task, got 'csv'"),
        ({"clip": 0.1}, r"clip needs a task, got 0\.1"),
        ({"task": "vae", "steps": 0}, "steps must be at least 1 or none, got 0"),
        ({"task": "vae", "clip": 0.0}, r"clip must be greater than 0 or none, got 0\.0"),
        ({"task": "vae", "shift": float("inf")}, "shift must be a finite number or none, got inf"),
    ],
)
def test_keys_that_would_be_ignored_are_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(**keys)


def test_tasks_differ_in_their_digests():
    assert RunConfig(task="vae").digest != RunConfig(task="gan").digest != RunConfig(task="gan", shift=1.0).digest
    assert RunConfig(task="vae").replace(seed=1).epochs == 1


def test_the_command_line(tmp_path):
    done = invoke("train", "--task", "vae", "--optimizer", "adamw", "--steps", 3, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "test loss" in done.output
    wrong = invoke("train", "--task", "difusion", "--out", tmp_path)
    assert wrong.exit_code == 2
    assert "did you mean 'diffusion'?" in " ".join(wrong.output.replace("│", " ").split())
    listed = invoke("sweep", "--task", "vae,gan", "--optimizer", "adamw", "--dry-run", "--out", tmp_path)
    assert "2 runs: 0 done, 2 to do" in listed.output
