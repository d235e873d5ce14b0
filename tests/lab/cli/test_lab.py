"""The lab's commands, as a newcomer uses them."""

from __future__ import annotations

import io
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

from borat.lab.cli import app, demo
from borat.lab.config import RunConfig
from borat.lab.sweeps.jobs import Outcome
from borat.lab.timing import optimizers as bench
from borat.lab.timing import shapes
from borat.lab.timing.launches import measure_launches
from borat.lab.training.train import train

runner = CliRunner()


def invoke(*arguments: str):
    return runner.invoke(app, list(arguments), env={"COLUMNS": "120", "TERM": "dumb"})


@pytest.fixture
def small_demo(monkeypatch):
    monkeypatch.setattr(demo, "LEARNING_RATES", (0.1, 10.0))
    monkeypatch.setattr(demo, "RADII", (16.0,))


def test_demo_shows_what_works(small_demo, tmp_path):
    result = invoke("demo", "--epochs", "1", "--out", str(tmp_path / "demo"))
    assert result.exit_code == 0, result.output
    for word in ("SGD", "ALI-G", "BORAT3", "BORAT5", "lr = 0.1", "lr = 10", "cross-entropy", "hinge", "wrong labels"):
        assert word in result.output
    assert result.output.count("Decades of usable learning rates: ") == 3
    assert "and FreeBORAT3, which needs neither" in result.output
    assert (tmp_path / "demo" / "report.html").is_file()
    again = invoke("demo", "--epochs", "1", "--out", str(tmp_path / "demo"))
    assert "27 small networks" in again.output
    assert "epoch" not in again.output, "nothing is trained twice"


def test_demo_gives_no_verdict_where_runs_failed(small_demo, tmp_path):
    config = demo.configs(1)["cross-entropy"][0]
    (tmp_path / config.digest).mkdir()
    (tmp_path / config.digest / "photo.jpg").write_text("")
    result = invoke("demo", "--epochs", "1", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert re.search(r"failed: ValueError: .* is not empty and holds no run\n  SGD, ", result.output)
    assert "Decades of usable" not in result.output


def test_the_full_demo():
    configs = demo.configs(10)
    assert {task: len(runs) for task, runs in configs.items()} == dict.fromkeys(demo.TASKS, 61)
    rates = {config.lr for runs in configs.values() for config in runs}
    assert max(rates) / min(rates) == pytest.approx(1e4)


def test_demo_shows_the_robustness(tmp_path):
    runs = [c for c in demo.configs(10)["cross-entropy"] if (c.lr, c.radius) in ((0.1, 16.0), (10.0, 16.0))]
    accuracy = {(c.method, c.lr): train(c, tmp_path / c.digest).result["test_accuracy"] for c in runs}
    assert len(accuracy) == 8
    assert all(accuracy[method, 0.1] > 0.95 for method, _ in accuracy)
    assert accuracy["SGD", 10.0] < 0.5
    assert accuracy["BORAT3", 10.0] > 0.95
    assert accuracy["BORAT5", 10.0] > 0.95


def test_the_table_of_the_demo():
    """A cell shows the best radius of its learning rate, or "diverged"."""
    config = demo.configs(1)["cross-entropy"][0]
    outcomes = [
        Outcome(config.as_dict(), Path(), "finished", {"test_accuracy": 0.8}),
        Outcome(config.replace(radius=16.0).as_dict(), Path(), "finished", {"test_accuracy": 0.9}),
        Outcome(config.replace(radius=32.0).as_dict(), Path(), "diverged", {"test_accuracy": 0.99}),
        Outcome(config.replace(lr=0.1).as_dict(), Path(), "diverged", {"test_accuracy": 0.99}),
        Outcome(RunConfig(**demo.FREE).as_dict(), Path(), "finished", {"test_accuracy": 0.95}),
    ]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(demo.result_table("cross-entropy", [demo.trial(outcome) for outcome in outcomes]))
    text = console.export_text()
    assert re.search(r"SGD +│ +90.0 │ *diverged │ +- │ +- │ +- │ +- │ +0/4", text)
    assert re.search(r"FreeBORAT3 +│ +- │ +- │ +- │ +- │ +- │ +95.0 │ +1/1", text)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler itself
def test_bench_prints_and_writes_its_tables(tmp_path):
    result = invoke("bench", "MLP", "--rounds", "1", "--output", str(tmp_path / "bench.md"))
    assert result.exit_code == 0, result.output
    page = (tmp_path / "bench.md").read_text(encoding="utf-8")
    for word in ("SGD (fused)", "AdamW (fused)", "BORAT, N = 10", "FreeBORAT, N = 3", "Prodigy", "quadprog", "PyTorch"):
        assert word in page
    assert "Operations of a step on the device, for 60 tensors" in page
    if find_spec("optax"):
        for word in ("In JAX, MLP", "optax.adamw", "optax.contrib.schedule_free_adamw", "free_borat, N = 3"):
            assert word in page
    assert [path.name for path in tmp_path.iterdir()] == ["bench.md"]


def test_a_step_on_the_device_takes_as_many_operations_for_any_number_of_tensors():
    few, many = measure_launches(3).rows, measure_launches(9).rows
    for (optimizer, *one), (_, *other) in zip(few, many, strict=True):
        assert one[0] == other[0]
        assert one[1] == other[1] or optimizer == "Adam (foreach)"


def test_a_step_on_the_device_takes_few_operations():
    """Uncompiled; their number grows slowly with the bundle."""
    counts = {optimizer: (int(large), int(small)) for optimizer, large, small in measure_launches(3).rows}
    for n in (2, 3, 5, 8):
        on_parameters, on_numbers = counts[f"BORAT, N = {n}"]
        assert on_parameters <= 20
        assert on_numbers <= 200 + 8 * n
        on_parameters, on_numbers = counts[f"FreeBORAT, N = {n}"]
        assert on_parameters <= 35 + 2 * n
        assert on_numbers <= 420 + 8 * n


@pytest.mark.parametrize(
    ("model", "parameters", "tensors"),
    [("WRN-40-4", 8_972_340, 116), ("ResNet-18", 11_689_512, 62), ("MLP", 19_450, 6)],
)
def test_benchmark_shapes(model, parameters, tensors):
    assert shapes.shape_summary(model) == f"{parameters:,} parameters in {tensors} tensors"


def test_benchmark_shapes_of_the_bi_lstm():
    with torch.device("meta"):
        layers = [
            nn.LSTM(300, 2048, bidirectional=True),
            nn.Linear(4 * 4096, 512),
            nn.Linear(512, 512),
            nn.Linear(512, 3),
        ]
    wanted = [tuple(p.shape) for layer in layers for p in layer.parameters()]
    assert shapes.shapes_of("Bi-LSTM") == wanted


def test_state_stays_within_its_budget():
    for cost in bench.measure_optimizers("MLP", rounds=1):
        if "BORAT" in cost.optimizer:
            assert cost.state <= int(cost.optimizer.split()[-1]) * 1.002, "up to the few numbers of the bundle"
