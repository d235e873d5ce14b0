"""A sweep over language models shows their losses."""

from __future__ import annotations

import random

from rich.console import Console
from typer.testing import CliRunner

from borat.lab.cli import app
from borat.lab.cli.watch import live_table
from borat.lab.config import RunConfig
from borat.lab.sweeps.jobs import TrainingJob
from borat.lab.sweeps.progress import JobProgress, SweepProgress
from borat.lab.training.train import train


def test_losses_are_shown(tmp_path):
    (tmp_path / "words.txt").write_text(" ".join(random.Random(0).choices(["bundle", "optimal", "ab"], k=300)))
    flags = ["--data", "text", "--data-dir", str(tmp_path / "words.txt"), "--model", "ngram-2-8", "--window", "8"]
    flags += ["--optimizer", "sgd,borat", "--lr", "0.01,1", "--epochs", "1", "--workers", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["sweep", *flags], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    assert "Test loss" in result.output
    assert "test perplexity" in result.output
    assert "%" not in result.output
    assert "4 of 4 runs" in result.output


def test_the_best_so_far_is_the_lowest(tmp_path):
    (tmp_path / "words.txt").write_text(" ".join(random.Random(0).choices(["bundle", "optimal", "ab"], k=300)))
    points, losses = [], []
    for lr in (1e-6, 1.0):
        config = RunConfig(data="text", model="ngram-2-8", window=8, optimizer="sgd", lr=lr, epochs=1, batch_size=16)
        metrics = train(config, tmp_path / config.digest, data_dir=tmp_path / "words.txt")
        losses.append(metrics.epochs[-1]["validation_loss"])
        points.append(JobProgress(TrainingJob(config, tmp_path / config.digest)))
    assert losses[1] < losses[0] - 0.1
    console = Console(width=120, record=True)
    console.print(live_table(SweepProgress(points)))
    text = console.export_text()
    assert f"{losses[1]:.3g}" in text
    assert f"{losses[0]:.3g}" not in text
