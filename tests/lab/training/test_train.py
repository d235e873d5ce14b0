"""Training runs: every optimizer, exact resumption after any interruption, divergence as a result."""

from __future__ import annotations

import json
import math
import os
import signal
import time

import pytest
import torch
from typer.testing import CliRunner

from borat.lab.baselines import make_optimizer
from borat.lab.cli import app
from borat.lab.config import RunConfig
from borat.lab.data import load
from borat.lab.methods import METHODS
from borat.lab.models import make_model
from borat.lab.store.records import read_runs
from borat.lab.store.run import Metrics, Run
from borat.lab.training.train import Interrupted, Training, train
from processes import ended, start_borat

SMALL = RunConfig(
    optimizer="borat", bundle_size=5, lr=1.0, radius=20.0, epochs=3, train_limit=400, batch_size=32, dropout=0.2
)


def without_time(metrics: Metrics) -> list[dict]:
    return [{k: v for k, v in epoch.items() if k != "seconds"} for epoch in metrics.epochs] + [metrics.result]


def assert_same_run(ours: Run, theirs: Run) -> None:
    assert without_time(ours.metrics) == without_time(theirs.metrics)
    for name in ("last.pt", "best.pt"):
        a, b = ours.load(name)["model"], theirs.load(name)["model"]
        assert all(torch.equal(a[key], b[key]) for key in a)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert train(SMALL, folder / "run").status == "finished"
    return Run(folder / "run")


def pairs() -> list[tuple[str, str]]:
    every = [
        (optimizer, loss) for optimizer in METHODS for loss in ("ce", "hinge") if (optimizer, loss) != ("dfw", "ce")
    ]
    return [*every, ("dfw", "smooth-hinge"), ("borat", "top5"), ("adam", "top5")]


@pytest.mark.parametrize(("optimizer", "loss"), pairs())
def test_every_optimizer_with_its_losses(tmp_path, optimizer, loss):
    lr = METHODS[optimizer].lr
    config = RunConfig(epochs=2, train_limit=300, optimizer=optimizer, loss=loss, lr=lr, batch_size=32, radius=30.0)
    metrics = train(config, tmp_path / "run")
    assert metrics.status == "finished"
    assert metrics.epochs[1]["train_loss"] < metrics.epochs[0]["train_loss"]
    norm = sum(w.square().sum() for k, w in Run(tmp_path / "run").load("last.pt")["model"].items()).sqrt()
    assert norm <= 30.0 * 1.01 or optimizer in ("borat", "alig"), "the trial point within a bundle may be outside"


def test_same_seed_same_run(tmp_path, uninterrupted):
    train(SMALL, tmp_path / "again")
    assert_same_run(Run(tmp_path / "again"), uninterrupted)
    other = train(SMALL.replace(seed=1), tmp_path / "other")
    assert without_time(other) != without_time(uninterrupted.metrics)


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 12, 13, 14, 30])
def test_resumes_bit_for_bit_from_any_batch(tmp_path, uninterrupted, stop):
    """An epoch has thirteen batches, a bundle four; the signal arrives in the middle of a batch."""
    seen = 0

    def stop_at(position, tally, batches):
        nonlocal seen
        seen += 1
        if seen == stop:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="resume to continue"):
        train(SMALL, tmp_path / "run", listener=stop_at)
    assert seen == stop
    torch.rand(7)  # other uses of the random numbers must not matter
    train(SMALL, tmp_path / "run")
    assert_same_run(Run(tmp_path / "run"), uninterrupted)


def test_survives_kill_9(tmp_path, uninterrupted):
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.as_dict().items() if v is not None and k != "augment"]
    words = ["train", f"--out={tmp_path}", *flags]
    folder = tmp_path / SMALL.digest
    kills = 0
    for sign in ("environment.json", "last.pt"):  # before its first epoch, and after it
        worker = start_borat(*words)
        while worker.is_alive() and not (folder / sign).exists():
            time.sleep(0.001)
        if not worker.is_alive():
            break
        worker.kill()
        worker.join()
        kills += 1
    assert kills, "the process ended before the first kill"
    assert ended(start_borat(*words)) == 0
    assert_same_run(Run(folder), uninterrupted)


def test_a_finished_run_is_not_repeated(tmp_path):
    train(SMALL, tmp_path / "run")
    batches = []
    metrics = train(SMALL, tmp_path / "run", listener=lambda *a: batches.append(a))
    assert metrics.status == "finished"
    assert not batches


def test_metrics_are_written_again(tmp_path):
    """A process may be killed between writing its last checkpoint and its metrics."""
    train(SMALL, tmp_path / "run")
    before = (tmp_path / "run" / "metrics.json").read_text()
    (tmp_path / "run" / "metrics.json").unlink()
    train(SMALL, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.json").read_text() == before


@pytest.mark.parametrize("optimizer", ["dog", "l4adam", "momo", "adam"])
def test_optimizers_that_raise_no_error_at_huge_rates(tmp_path, optimizer):
    config = RunConfig(optimizer=optimizer, lr=1e15, epochs=2, train_limit=200, model="mlp-8")
    assert train(config, tmp_path / "run").status in ("diverged", "finished")


def test_divergence_is_a_result(tmp_path):
    config = RunConfig(optimizer="sgd", lr=1e8, epochs=5, train_limit=200)
    metrics = train(config, tmp_path / "run")
    assert metrics.status == "diverged"
    assert len(metrics.epochs) < 5
    stored = Run(tmp_path / "run").metrics
    assert stored.status == "diverged"
    assert math.isnan(stored.epochs[-1]["validation_loss"])
    text = (tmp_path / "run" / "metrics.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["epochs"][-1]["validation_loss"] is None, (
        "other languages read it"
    )


def test_the_top_five_loss_measures_top_five_accuracy(tmp_path):
    """Top-5 accuracy is the share of examples with fewer than five scores above that of the right class."""
    config = RunConfig(optimizer="alig", loss="top5", epochs=1, train_limit=300, model="mlp-8", lr=0.1)
    metrics = train(config, tmp_path / "run")
    task, model = load("digits", train_limit=300), make_model("mlp-8", input_shape=(64,), classes=10)
    model.load_state_dict(Run(tmp_path / "run").load("last.pt")["model"])
    (batch,) = task.batches("test", 1000, epoch=0, seed=0)
    with torch.no_grad():
        scores = model.eval()(*batch.inputs)
    above = (scores > scores.gather(1, batch.labels[:, None])).sum(1)
    assert metrics.result["test_accuracy"] == pytest.approx((above == 0).double().mean().item())
    assert metrics.result["test_top5_accuracy"] == pytest.approx((above < 5).double().mean().item())
    assert metrics.result["test_accuracy"] < metrics.result["test_top5_accuracy"] < 1.0
    assert metrics.epochs[0]["train_accuracy"] < metrics.epochs[0]["train_top5_accuracy"] < 1.0


def test_a_dropped_batch_is_not_divergence(tmp_path, monkeypatch):
    forward, calls = Training._forward, []

    def broken(self, batch):
        scores, loss = forward(self, batch)
        calls.append(loss)
        return scores, loss * math.nan if len(calls) == 4 else loss

    monkeypatch.setattr(Training, "_forward", broken)
    with pytest.warns(UserWarning, match="the batch is dropped"):
        metrics = train(RunConfig(epochs=2, train_limit=300, batch_size=32, optimizer="borat"), tmp_path / "borat")
    assert metrics.status == "finished"
    assert [epoch["dropped_batches"] for epoch in metrics.epochs] == [1, 1]
    assert all(math.isfinite(epoch["train_loss"]) for epoch in metrics.epochs)
    calls.clear()
    assert (
        train(RunConfig(epochs=2, train_limit=300, batch_size=32, optimizer="sgd"), tmp_path / "sgd").status
        == "diverged"
    )


@pytest.mark.parametrize("precision", ["64", "bf16-mixed"])
def test_precisions(tmp_path, precision):
    config = RunConfig(optimizer="borat", epochs=2, train_limit=300, precision=precision, lr=1.0)
    metrics = train(config, tmp_path / "run")
    assert metrics.epochs[1]["train_loss"] < metrics.epochs[0]["train_loss"]


def test_a_failed_run_is_recorded_and_continues_from_its_checkpoint(tmp_path, monkeypatch, uninterrupted):
    """It fails in the second epoch, as DoG does with gradients that are not finite."""
    forward = Training._forward

    def refusing(self, batch):
        if self.model.training and self.position.epoch == 1 and self.position.batch == 5:
            raise ValueError("nan in the gradients")
        return forward(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_forward", refusing)
        with pytest.raises(ValueError, match="nan in the gradients"):
            train(SMALL, tmp_path / "run")
    assert (Run(tmp_path / "run").metrics.status, len(Run(tmp_path / "run").metrics.epochs)) == ("failed", 1)
    assert list(read_runs(tmp_path).status) == ["failed"]
    assert "1 run (1 failed)" in CliRunner().invoke(app, ["report", str(tmp_path)]).output
    assert train(SMALL, tmp_path / "run").status == "finished"
    assert_same_run(Run(tmp_path / "run"), uninterrupted)


def test_metrics_of_a_run(uninterrupted):
    metrics = uninterrupted.metrics
    assert [epoch["epoch"] for epoch in metrics.epochs] == [0, 1, 2]
    assert sum(sum(epoch["kinds"].values()) for epoch in metrics.epochs) == 39 // 4
    assert metrics.result["test_accuracy"] > 0.8


@pytest.mark.parametrize("optimizer", ["sgd", "borat", "free-borat"])
def test_the_fit_is_that_of_the_result_on_the_training_examples(tmp_path, optimizer):
    config = RunConfig(
        epochs=2, train_limit=300, optimizer=optimizer, lr=0.1, batch_size=32, label_noise=0.2, dropout=0.2
    )
    result = train(config, tmp_path / "run")
    state = Run(tmp_path / "run").load("last.pt")
    model = make_model(config.model, input_shape=(1, 8, 8), classes=10).eval()
    model.load_state_dict(state["model"])
    if optimizer != "sgd":  # gradients are measured at another point than the result
        method = make_optimizer(model, config)
        method.load_state_dict(state["optimizer"])
        method.eval()
    (batch,) = load("digits", train_limit=300, label_noise=0.2).batches("train", 300, shuffle=False)
    scores = model(*batch.inputs).detach()
    assert result.result["fit_accuracy"] == (scores.argmax(1) == batch.labels).double().mean().item()
    loss = torch.nn.functional.cross_entropy(scores, batch.labels).item()
    assert result.result["fit_loss"] == pytest.approx(loss, rel=1e-5)
    assert result.epochs[-1]["train_loss"] != pytest.approx(loss, rel=1e-3), "the mean during training differs"


def test_validation_size(tmp_path):
    config = RunConfig(epochs=1, train_limit=100, validation_size=20, batch_size=32)
    assert config.digest != config.replace(validation_size=None).digest
    train(config, tmp_path / "run")
    assert Run(tmp_path / "run").environment["data"]["sizes"] == {"train": 100, "validation": 20, "test": 359}


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["train", *arguments], env={"COLUMNS": "160", "TERM": "dumb"})


def test_a_run_is_resumed_by_its_folder(tmp_path, uninterrupted):
    with pytest.raises(Interrupted):
        train(SMALL, tmp_path / "run", listener=lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    result = invoke(str(tmp_path / "run"), "--resume")
    assert result.exit_code == 0, result.output
    assert "finished after 3 epochs" in result.output
    assert_same_run(Run(tmp_path / "run"), uninterrupted)
    other = invoke(str(tmp_path / "run"), "--lr", "3")
    assert other.exit_code == 2
    assert "holds a run with another configuration: lr differ" in " ".join(other.output.split())


def test_a_missing_run_cannot_be_resumed(tmp_path):
    result = invoke("--out", str(tmp_path / "runs"), "--resume")
    assert result.exit_code == 2
    assert "there is no run to resume" in " ".join(result.output.split())
    result = invoke(str(tmp_path), "--resume")
    assert "holds no run" in " ".join(result.output.split())


def test_events_for_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = train(RunConfig(epochs=2, train_limit=400, batch_size=8, optimizer="borat"), tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    names = events.Tags()["scalars"]
    assert {"batch/loss", "epoch/validation_accuracy", "borat/step_size", "borat/alpha/bound"} <= set(names)
    shown = [event.value for event in events.Scalars("epoch/validation_accuracy")]
    assert shown == pytest.approx([epoch["validation_accuracy"] for epoch in metrics.epochs])
    assert [event.step for event in events.Scalars("epoch/train_loss")] == [50, 100]


def test_a_neural_computer_learns_bits(tmp_path):
    config = RunConfig(data="repeat_copy", model="dnc", train_limit=256, batch_size=16, epochs=2, optimizer="borat")
    metrics = train(config, tmp_path / "run")
    assert metrics.epochs[1]["train_loss"] < metrics.epochs[0]["train_loss"]
    assert 0.5 < metrics.result["test_accuracy"] < 1.0
    with pytest.raises(ValueError, match="loss must be ce for repeat_copy"):
        train(config.replace(loss="hinge"), tmp_path / "other")


@pytest.mark.parametrize("optimizer", ["sgd", "borat"])
def test_schedules_survive_interruption(tmp_path, optimizer):
    config = SMALL.replace(epochs=4, schedule="piecewise", optimizer=optimizer)
    whole = train(config, tmp_path / "whole")
    assert [epoch["lr"] for epoch in whole.epochs] == pytest.approx([1.0, 1.0, 0.1, 0.01])

    def stop_at(position, tally, batches):
        if (position.epoch, position.batch) == (2, 5):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", listener=stop_at)
    train(config, tmp_path / "run")
    assert_same_run(Run(tmp_path / "run"), Run(tmp_path / "whole"))


def test_step_sizes_are_recorded(tmp_path):
    for optimizer, expected in (("sgd", 0.5), ("adam", None)):
        epoch = train(SMALL.replace(epochs=1, lr=0.5, optimizer=optimizer), tmp_path / optimizer).epochs[0]
        assert epoch["step_size"] == expected
    epoch = train(SMALL.replace(epochs=1, lr=0.5, optimizer="alig"), tmp_path / "alig").epochs[0]
    assert 0.0 < epoch["step_size"] < 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optimizer", "sdg"], "unknown optimizer 'sdg'; did you mean 'sgd'?"),
        (["--model", "wrn-41-4"], "depth"),
        (["--data", "cifr10"], "did you mean 'cifar10'?"),
        (["--optimizer", "borat", "--weight-decay", "0.1"], "weight_decay does not apply to borat"),
        (["--data", "repeat_copy"], "model must be dnc for repeat_copy, got 'mlp-128-128'"),
        (["--model", "infersent"], "model must take images or vectors for digits"),
        (["--model", "mlp-bn-8", "--train-limit", "129"], "batch_size must leave at least 2 of 129 examples"),
        (["--momentum", "2"], "momentum must be less than 1"),
        (["nowhere.toml"], "the file nowhere.toml does not exist"),
        (["--epoch", "2"], "--epochs"),
    ],
)
def test_mistakes_are_explained(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "runs").exists()


def test_file_and_flags(tmp_path):
    (tmp_path / "run.toml").write_text("epochs = 1\ntrain_limit = 200\nlr = 1.0\n")
    result = invoke(str(tmp_path / "run.toml"), "--bundle-size", "2", "--out", str(tmp_path / "runs"))
    assert result.exit_code == 0, result.output
    assert "finished after 1 epoch:" in result.output
    config = RunConfig(epochs=1, train_limit=200, lr=1.0, bundle_size=2)
    assert Run(tmp_path / "runs" / config.digest).config == config


def test_denormal_numbers_are_zero_during_training(tmp_path):
    """They slow CPUs down many times; after training they are not flushed any more."""
    tiny, seen = torch.full((4,), 1e-40), []
    config = RunConfig(epochs=1, train_limit=64, bundle_size=2)
    train(config, tmp_path / "run", listener=lambda *_: seen.append(float((tiny * 1.0)[0])))
    assert set(seen) == {0.0}
    assert float((tiny * 1.0)[0]) > 0.0
