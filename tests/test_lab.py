"""The lab's commands, as a newcomer uses them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from borat.lab import bench, demo
from borat.lab.cli import app

runner = CliRunner()


def invoke(*arguments: str):
    return runner.invoke(app, list(arguments), env={"COLUMNS": "120", "TERM": "dumb"})


def test_demo_compares_four_methods_at_two_learning_rates():
    result = invoke("demo", "--epochs", "1")
    assert result.exit_code == 0
    for word in ("SGD", "ALI-G", "BORAT3", "BORAT5", "lr = 0.1", "lr = 10"):
        assert word in result.output


def test_demo_shows_the_robustness():
    accuracy = {(r.method, r.lr): r.test_accuracy for r in demo.run(epochs=10)}
    assert all(accuracy[method, 0.1] > 0.95 for method in demo.METHODS)
    assert accuracy["SGD", 10.0] < 0.5
    assert accuracy["BORAT3", 10.0] > 0.95
    assert accuracy["BORAT5", 10.0] > 0.95


def test_demo_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "MANY_LEARNING_RATES", (0.1, 1.0))
    result = invoke("demo", "--epochs", "1", "--picture", str(tmp_path / "picture.png"))
    assert result.exit_code == 0
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_same_seed_same_result():
    data = demo.Digits.load()
    assert demo.train("BORAT3", 1.0, data, 1, seed=3) == demo.train("BORAT3", 1.0, data, 1, seed=3)
    assert demo.train("BORAT3", 1.0, data, 1, seed=3) != demo.train("BORAT3", 1.0, data, 1, seed=4)


def test_bench_prints_and_writes_its_tables(tmp_path):
    result = invoke("bench", "MLP", "--rounds", "1", "--output", str(tmp_path / "bench.md"))
    assert result.exit_code == 0, result.output
    page = (tmp_path / "bench.md").read_text(encoding="utf-8")
    for word in ("SGD (fused)", "Adam", "BORAT, N = 10", "quadprog", "PyTorch"):
        assert word in page
    assert [path.name for path in tmp_path.iterdir()] == ["bench.md"]


@pytest.mark.parametrize(
    ("model", "parameters", "tensors"),
    [("WRN-40-4", 8_972_340, 116), ("ResNet-18", 11_689_512, 62), ("MLP", 19_450, 6)],
)
def test_benchmark_shapes(model, parameters, tensors):
    assert bench.shape_summary(model) == f"{parameters:,} parameters in {tensors} tensors"


def test_benchmark_shapes_of_the_bi_lstm():
    with torch.device("meta"):
        layers = [
            nn.LSTM(300, 2048, bidirectional=True),
            nn.Linear(4 * 4096, 512),
            nn.Linear(512, 512),
            nn.Linear(512, 3),
        ]
    assert bench.bi_lstm() == [tuple(p.shape) for layer in layers for p in layer.parameters()]


def test_state_stays_within_its_budget():
    for cost in bench.measure_optimizers("MLP", rounds=1):
        if cost.optimizer.startswith("BORAT"):
            assert cost.state <= int(cost.optimizer.split()[-1]) * 1.002, "up to the few numbers of the bundle"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "VGG"), "'VGG' is not one of WRN-40-4"),
        (("demo", "--epochs", "0"), "--epochs"),
        (("demo", "--picture", "/nowhere/at/all.png"), "the folder /nowhere/at does not exist"),
        (("dmo",), "demo"),
    ],
)
def test_mistakes_are_explained(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_version():
    assert invoke("--version").output.startswith("borat 0.")
