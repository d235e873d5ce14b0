"""The Ray engine, on a Ray cluster on this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from typer.testing import CliRunner

from borat.lab import sweep
from borat.lab.cli import app
from borat.lab.config import RunConfig
from borat.lab.store.run import Run, lock_of
from borat.lab.sweeps.engines import make_engine
from borat.lab.sweeps.engines.ray import RayEngine
from borat.lab.sweeps.sweep import run_configs
from borat.lab.training.train import train
from fabricate import find_runs
from sockets import LOOPBACK, listening, needs_table

ray = pytest.importorskip("ray", reason="needs the ray extra")

on_the_cluster = pytest.mark.usefixtures("_cluster")

CONFIG = RunConfig(epochs=6, train_limit=600, batch_size=8, dropout=0.2)


@pytest.fixture(scope="module")
def _cluster():
    """Ray as the engine starts it, with two CPUs and a fictitious GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("RAY_OVERRIDE_RESOURCES", '{"CPU": 2, "GPU": 1}')
        patch.setenv("RAY_worker_niceness", "0")  # or its workers starve beside other tests
        with RayEngine()._connected(ray):
            yield
    assert not ray.is_initialized(), "it ends with the sweep"


# Without a cluster


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "no Ray cluster answers at address '127.0.0.1:1': .*refused"),
        ("ray://127.0.0.1:1", "no Ray cluster answers at address 'ray://127.0.0.1:1': .*refused"),
        ("auto", "cannot connect to Ray at address 'auto': Could not find any running Ray instance"),
        ("nonsense", "cannot connect to Ray at address 'nonsense': Invalid address format"),
    ],
)
def test_bad_address(tmp_path, monkeypatch, address, message):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ValueError, match=message):
        run_configs([CONFIG], tmp_path, engine=RayEngine(address=address))
    arguments = ["sweep", "--engine", "ray", "--address", address, "--lr", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert re.search(message, re.sub(r"[\s│]+", " ", result.output))


def test_ray_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ValueError, match=re.escape("the engine 'ray' needs Ray, which is missing: pip install 'borat[ray]'")
    ):
        make_engine("ray")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus_per_run": -1}, "gpus_per_run must be at least 0, got -1"),
        ({"gpus_per_run": 1.5}, "gpus_per_run must be a fraction of one GPU or a whole number, got 1.5"),
        ({"cpus_per_run": float("nan")}, "cpus_per_run must be at least 0, got nan"),
        ({"retries": -1}, "retries must be at least 0, got -1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        RayEngine(**options)


def test_a_command_starts_ray_and_ends_it(tmp_path):
    """In a new process, as a user does."""
    words = ["sweep", "--engine", "ray", "--epochs", "1", "--train-limit", "100", "--lr", "0.1,1", "--optimizer", "sgd"]
    environment = {**os.environ, "RAY_OVERRIDE_RESOURCES": '{"CPU": 2}', "COLUMNS": "200"}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, "-m", "borat", *words, "--out", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"2 of 2 runs are in {tmp_path}" in done.stdout
    assert [run.metrics.status for run in find_runs(tmp_path)] == ["finished", "finished"]
    assert not ray.is_initialized()


# On the cluster


@on_the_cluster
def test_killed_worker_is_retried_and_the_run_is_the_same(tmp_path):
    train(CONFIG, tmp_path / "alone")
    killed: list[int] = []

    def kill_once(progress):
        if not killed and progress.points[0].done >= 2:
            killed.append(int(lock_of(progress.points[0].job.folder).read_text().split()[1]))
            os.kill(killed[0], signal.SIGKILL)

    (outcome,) = run_configs([CONFIG], tmp_path / "ray", engine=RayEngine(retries=1), watch=kill_once)
    assert killed
    assert outcome.status == "finished", outcome.error
    ours, theirs = Run(outcome.folder), Run(tmp_path / "alone")
    assert ours.metrics.result == theirs.metrics.result
    assert [{**e, "seconds": 0} for e in ours.metrics.epochs] == [{**e, "seconds": 0} for e in theirs.metrics.epochs]
    weights, expected = ours.load("last.pt")["model"], theirs.load("last.pt")["model"]
    assert all(torch.equal(weights[key], expected[key]) for key in expected)
    assert ray.is_initialized(), "the sweep leaves a connection of the program open"


@on_the_cluster
@needs_table
def test_on_this_machine_it_listens_for_no_other():
    """Neither this process nor Ray's processes nor the workers."""
    found = listening(os.getpid())
    assert found
    assert found <= LOOPBACK


@on_the_cluster
def test_interrupt_saves_the_run(tmp_path):
    def interrupt(progress):
        if progress.points[0].done >= 1:
            raise KeyboardInterrupt

    config = CONFIG.replace(epochs=1000)
    with pytest.raises(KeyboardInterrupt):
        run_configs([config], tmp_path, engine=RayEngine(), watch=interrupt)
    saved = Run(tmp_path / config.digest).load("last.pt")["position"]
    assert saved["batch"] > 0, "stopped within an epoch"


@on_the_cluster
def test_command(tmp_path):
    """Failures are listed by their reason and give exit code 1. One run at a time, all in one process."""
    arguments = f"sweep --engine ray --out {tmp_path} --epochs 1 --train-limit 100 --lr 0.1,1 --optimizer sgd,borat"
    arguments += " --weight-decay 0.01 --cpus-per-run 2"
    done = CliRunner().invoke(app, arguments.split(), env={"COLUMNS": "200"})
    assert done.exit_code == 1, done.output
    assert re.search(r"SGD, lr 0.1: finished, test accuracy [\d.]+ % \(\d of 4 done", done.output)
    assert (
        done.output.count(
            "failed: ValueError: weight_decay does not apply to borat: use radius, got 0.01\n"
            "  BORAT3, lr 0.1; BORAT3, lr 1\n"
        )
        == 1
    )
    assert "2 of 4 runs are in" in done.output
    assert len(list((tmp_path / "logs").iterdir())) == 2


@pytest.fixture
def resources():
    """A function without a module, which Ray would import on the other machine."""

    def resources(kind, number, folder):
        """Return the resources that Ray reserved; some kinds of runs fail."""
        if kind == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "fails":
            raise ArithmeticError("no luck")
        reserved = ray.get_runtime_context().get_assigned_resources()
        (folder / "started").touch()
        while len(list(folder.parent.glob("*/started"))) < 2:
            time.sleep(0.05)
        return {
            "cpus": reserved.get("CPU", 0),
            "gpus": reserved.get("GPU", 0),
            "threads": torch.get_num_threads(),
            "visible": len(os.environ["CUDA_VISIBLE_DEVICES"]),
        }

    return resources


@on_the_cluster
def test_fractions_of_a_gpu(tmp_path, resources):
    """Two runs share the GPU at the same time: each waits for the other."""
    engine = RayEngine(cpus_per_run=1, gpus_per_run=0.5)
    outcomes = sweep(resources, {"kind": ["lives"], "number": [1, 2]}, folder=tmp_path, engine=engine)
    expected = {"cpus": 1.0, "gpus": 0.5, "threads": 1, "visible": 1}
    assert [outcome.result for outcome in outcomes] == [expected, expected]


@on_the_cluster
def test_too_many_gpus():
    heartbeats = RayEngine(gpus_per_run=4).run([str])
    with pytest.warns(UserWarning, match="no machine of the cluster has 1 CPUs and 4 GPUs: the runs wait for one"):
        assert next(heartbeats) == []
    heartbeats.close()


@on_the_cluster
def test_failures_do_not_stop_the_rest(tmp_path, resources):
    grid = [{"kind": kind, "number": number} for number, kind in enumerate(["lives", "dies", "fails", "lives"])]
    outcomes = sweep(resources, grid, folder=tmp_path, engine=RayEngine(retries=0))
    assert [outcome.status for outcome in outcomes] == ["finished", "failed", "failed", "finished"]
    assert outcomes[0].result["visible"] == 0, "a run that asked for no GPU sees none"
    assert "worker died" in outcomes[1].error
    assert outcomes[2].error.endswith("ArithmeticError: no luck\n")
