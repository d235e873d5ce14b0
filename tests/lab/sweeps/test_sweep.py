"""Sweeps: grids, skipping, resuming, dead workers, user functions, errors."""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import borat
from borat.lab import sweep
from borat.lab.cli import app
from borat.lab.cli.common import watching
from borat.lab.config import RunConfig
from borat.lab.store.run import InUseError, Run, exclusive, lock_of
from borat.lab.sweeps.engines import make_engine
from borat.lab.sweeps.engines.base import Ended
from borat.lab.sweeps.engines.local import LocalEngine, usable_cores
from borat.lab.sweeps.grid import combinations, expand
from borat.lab.sweeps.jobs import Outcome, SweepProgress, TrainingJob, digest
from borat.lab.sweeps.sweep import fingerprint, run_configs
from borat.lab.training.train import train
from fabricate import find_runs
from processes import count_group, ended, start_borat, wait_until

BASE = {"epochs": 5, "train_limit": 600, "batch_size": 8, "dropout": 0.2}
FLAGS = "--epochs 5 --train-limit 600 --batch-size 8 --dropout 0.2 --lr 0.1,1 --optimizer alig,borat --bundle-size 3"
FACTOR = 1
CONFIGS = expand({**BASE, "optimizer": ["alig", "borat"], "lr": [0.1, 1.0]})


def assert_same_runs(ours: Path, theirs: Path) -> None:
    """Assert that runs are equal bit for bit, apart from their duration."""
    for config in CONFIGS:
        a, b = Run(ours / config.digest), Run(theirs / config.digest)
        assert a.metrics.status == "finished"
        assert a.metrics.result == b.metrics.result
        for mine, other in zip(a.metrics.epochs, b.metrics.epochs, strict=True):
            assert {**mine, "seconds": 0} == {**other, "seconds": 0}
        weights, expected = a.load("last.pt")["model"], b.load("last.pt")["model"]
        assert all(torch.equal(weights[key], expected[key]) for key in expected)


@pytest.fixture
def start():
    """Start processes that end with the test."""
    started: list[subprocess.Popen] = []

    def start(command: list[str], **options) -> subprocess.Popen:
        started.append(subprocess.Popen(command, **options, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


@pytest.fixture
def start_warmly():
    """Start commands with their libraries already imported, in processes that end with the test."""
    started = []

    def start(*words: str, **options):
        started.append(start_borat(*words, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.join()


def epochs_done(folder: Path) -> list[int]:
    return [len(Run(folder / config.digest).metrics.epochs) for config in CONFIGS]


def finished(folder: Path) -> list[Path]:
    return [run.path for run in find_runs(folder) if run.metrics.status == "finished"]


def holder(folder: Path) -> int:
    """Return the process that holds the lock of a run; 0 while the file is being written."""
    words = lock_of(folder).read_text(encoding="utf-8").split()
    return int(words[1]) if len(words) > 1 else 0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    """The four runs, one after the other and without a sweep."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    for config in CONFIGS:
        assert train(config, folder / config.digest).status == "finished"
    return folder


# Grids


def test_every_combination_once_and_in_order():
    configs = expand({"epochs": 1, "optimizer": ["sgd", "borat"], "radius": ["none", 50], "lr": [0.1, 1]})
    assert [(c.method, c.radius, c.lr) for c in configs] == [
        (method, radius, lr) for method in ("SGD", "BORAT3") for radius in (None, 50.0) for lr in (0.1, 1.0)
    ]
    assert expand({"seed": 3}) == [RunConfig(seed=3)]


def test_arrays_are_lists():
    points = list(combinations({"lr": np.logspace(-2, 0, 3), "n": [np.float32(1.0), 2]}))
    assert points[:2] == [{"lr": 0.01, "n": 1.0}, {"lr": 0.01, "n": 2}]
    assert {type(point["lr"]) for point in points} == {float}


def test_what_has_no_effect_makes_no_difference():
    configs = expand({"optimizer": ["sgd", "alig", "borat"], "bundle_size": [3, 5], "lr": [1, 1.0]})
    assert [c.method for c in configs] == ["SGD", "ALI-G", "BORAT3", "BORAT5"]


# Runs


def test_finished_runs_are_skipped(uninterrupted):
    written = {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*.json")}
    engine = make_engine(workers=1)
    started = time.monotonic()
    outcomes = run_configs([CONFIGS[1], CONFIGS[0], CONFIGS[1]], uninterrupted, engine=engine)
    assert time.monotonic() - started < 1.0, "no worker was started"
    assert [outcome.config for outcome in outcomes] == [CONFIGS[1], CONFIGS[0], CONFIGS[1]]
    assert written == {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*.json")}


def test_same_command_continues_after_any_end(tmp_path, uninterrupted, start_warmly):
    """A worker is killed, then the sweep is asked to end, then it is killed: nothing is lost and nothing repeated."""
    out = tmp_path / "runs"
    first, second = out / CONFIGS[0].digest, out / CONFIGS[1].digest
    command = ["sweep", "--out", str(out), "--workers", "2", *FLAGS.split()]
    file = tmp_path / "said.txt"

    sweeping = start_warmly(*command, output=file)
    wait_until(lambda: lock_of(first).exists() and lock_of(second).exists() and holder(first) and holder(second))
    unlucky, other = holder(first), holder(second)
    os.kill(unlucky, signal.SIGKILL)
    wait_until(
        lambda: sum(epochs_done(out)) >= 2 and holder(first) not in (0, unlucky) and len(Run(first).metrics.epochs) >= 1
    )
    assert holder(second) == other, "only its own run is affected"
    sweeping.terminate()
    assert ended(sweeping) == 130
    said = file.read_text()
    assert "stopped; rerun the command to continue" in said
    assert "failed:" not in said
    assert any(run.load("last.pt")["position"]["batch"] > 0 for run in find_runs(out)), "saved within an epoch"

    before = sum(epochs_done(out))
    sweeping = start_warmly(*command)
    wait_until(lambda: sum(epochs_done(out)) > before and finished(out))
    sweeping.kill()
    sweeping.join()
    for run in find_runs(out):
        with exclusive(run.path, patience=20):
            pass  # its worker saw that the sweep is gone
    done = finished(out)
    assert 0 < len(done) < 4, "the sweep was killed midway"
    written = {path: path.stat().st_mtime_ns for run in done for path in run.iterdir()}

    third = invoke(*command[1:])
    assert third.exit_code == 0, third.output
    assert "4 of 4 runs are in" in third.output
    assert len(re.findall(": finished, test accuracy", third.output)) == 4 - len(done)
    assert written == {path: path.stat().st_mtime_ns for path in written}
    assert_same_runs(out, uninterrupted)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each worker imports by itself")
def test_ctrl_c_while_workers_are_prepared(tmp_path, start_warmly):
    """A terminal sends it to all processes; only the sweep prints a line, and none is left."""
    file = tmp_path / "said.txt"
    sweeping = start_warmly("sweep", "--out", str(tmp_path / "runs"), *FLAGS.split(), output=file, leader=True)
    wait_until(lambda: count_group(sweeping, "multiprocessing.forkserver") > 1)  # from which it was started itself
    time.sleep(1.0)  # of several that they import
    os.killpg(sweeping.pid, signal.SIGINT)
    assert ended(sweeping, 60.0) == 130
    said = file.read_text()
    assert said == "stopped; rerun the command to continue\n"
    wait_until(lambda: not count_group(sweeping))


def test_results_that_are_written_elsewhere_are_missed(tmp_path):
    """For example, if machines do not share the folder."""

    class Elsewhere:
        def run(self, calls):
            yield [Ended(job, None) for job in range(len(calls))]

    (outcome,) = run_configs(CONFIGS[:1], tmp_path, engine=Elsewhere())
    assert outcome.status == "failed"
    assert outcome.error.endswith("the folder must be on storage that all machines share")


def test_folder_in_use(tmp_path, start, monkeypatch):
    """Another process holds the lock until it dies; the holder may take it again."""
    code = "import sys, time; from pathlib import Path; from borat.lab.store.run import exclusive\n"
    code += "with exclusive(Path(sys.argv[1]), 0):\n print('held', flush=True)\n time.sleep(60)"
    folder = tmp_path / "run"
    other = start([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE)
    assert other.stdout.readline() == "held\n"
    message = rf"run is in use by process {other.pid} on .*: wait for it or stop it"
    monkeypatch.setattr("borat.lab.training.train.PATIENCE", 0.1)
    with pytest.raises(InUseError, match=message):
        train(CONFIGS[0], folder)
    other.kill()
    other.communicate()
    with exclusive(folder, 5), exclusive(folder, 0):
        assert holder(folder) == os.getpid()


# A user's own function


@pytest.fixture
def learn():
    """A function without a module, so that workers need not import this one."""

    def learn(rate, kind="plain", folder=None):
        """Count the calls; fail or die, depending on the kind."""
        calls = folder / "calls.txt"
        with calls.open("a") as file:
            file.write(f"{torch.get_num_threads()}\n")
        print("a word from the function")
        if kind == "fails once" and calls.read_text().count("\n") == 1:
            raise ArithmeticError("no luck")
        if kind == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        return {"loss": torch.tensor(1 / rate)}

    return learn


def test_own_function(tmp_path, capfd, learn):
    grid = [
        {"rate": 2},
        {"rate": 4, "kind": "fails once"},
        {"rate": 1, "kind": "dies"},
        {"rate": 0},
        {"rate": 8, "kind": "plain"},
        {"rate": 2},
    ]
    seen: list[str] = []
    engine = LocalEngine(workers=1, retries=0)
    outcomes = sweep(learn, grid, folder=tmp_path, engine=engine, watch=lambda progress: seen.append(str(progress)))
    assert [outcome.arguments for outcome in outcomes] == grid
    statuses = [outcome.status for outcome in outcomes]
    assert statuses == ["finished", "failed", "failed", "failed", "finished", "finished"]
    assert seen[0] == "0 of 5 done, 0 failed, 0 running, 5 waiting"
    assert seen[-1] == "5 of 5 done, 3 failed, 0 running, 0 waiting"
    good, unlucky, dead, wrong, last, again = outcomes
    assert good.result == again.result == {"loss": 0.5}
    assert last.result == {"loss": 0.125}
    assert unlucky.error.endswith("ArithmeticError: no luck\n")
    assert "in learn" in unlucky.error
    assert "ZeroDivisionError" in wrong.error
    assert dead.error == "the worker process died (SIGKILL) in attempt 1"
    assert capfd.readouterr().out == "", "the output of a run goes to its log"
    log = (tmp_path / "logs" / f"{unlucky.folder.name}.txt").read_text()
    assert log.startswith("a word from the function\nTraceback")
    assert json.loads((good.folder / "arguments.json").read_text()) == {"rate": 2}
    assert json.loads((good.folder / "result.json").read_text()) == {"loss": 0.5}

    outcomes = sweep(learn, grid[:2], folder=tmp_path, workers=1)
    assert [outcome.result for outcome in outcomes] == [{"loss": 0.5}, {"loss": 0.25}]
    calls = [(outcome.folder / "calls.txt").read_text().split() for outcome in (good, unlucky, dead)]
    assert calls[0] == [str(usable_cores())], "the good one was called once, with a thread for each core"
    assert [len(numbers) for numbers in calls] == [1, 2, 1]


def test_workers_draw_their_own_numbers_in_the_environment_of_now(tmp_path, monkeypatch):
    """Although they are forked from a server that was started earlier."""

    def draw(point, wanted):
        (meeting / f"{wanted}-{point}").touch()
        while len(list(meeting.glob(f"{wanted}-*"))) < 2:
            time.sleep(0.01)  # until there are two processes
        return {"python": random.random(), "numpy": np.random.rand(), "variable": float(os.environ["WANTED"])}  # noqa: NPY002

    meeting = tmp_path / "meeting"
    meeting.mkdir()
    for wanted in (1, 2):
        monkeypatch.setenv("WANTED", str(wanted))
        outcomes = sweep(draw, {"point": [0, 1], "wanted": [wanted]}, folder=tmp_path / "sweep", workers=2)
        one, two = (outcome.result for outcome in outcomes)
        assert one["variable"] == two["variable"] == wanted
        assert one["python"] != two["python"]
        assert one["numpy"] != two["numpy"]


SCRIPT = """
import multiprocessing, sys
sys.path.insert(0, sys.argv[1])
import borat
from borat.lab import sweep

def origin(x):
    import borat
    return {"same": borat.__file__.startswith(sys.argv[1])}

def run(folder):
    (outcome,) = sweep(origin, {"x": [1]}, folder=folder, workers=1)
    print(outcome.status, outcome.result)

if __name__ == "__main__":
    assert borat.__file__.startswith(sys.argv[1])
    run("first")
    child = multiprocessing.get_context("fork").Process(target=run, args=("second",))
    child.start()
    child.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each worker imports by itself")
def test_workers_import_what_the_sweep_does(tmp_path):
    """Nothing from the working directory; and a process forked after a sweep can sweep, too."""
    shutil.copytree(Path(borat.__file__).parent, tmp_path / "copy" / "borat")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "cuda.py").write_text("raise ValueError('this is not what PyTorch looks for')")
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "copy")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == 2 * "finished {'same': 1.0}\n", done.stderr


def test_another_function_has_results_of_its_own():
    def scaled(by):
        return lambda x: {"y": by * x}

    doubled, tripled = scaled(2), scaled(3)
    assert fingerprint(doubled) == fingerprint(scaled(2))
    others = (tripled, lambda x: {"y": 2 * x}, lambda x: {"z": 2 * x}, partial(doubled, x=1), partial(doubled, x=2))
    names = {digest({"x": 1}, fingerprint(function)) for function in (doubled, *others)}
    assert len(names) == 1 + len(others)


class Scale:
    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return {"y": self.by * x}

    def method(self, x):
        return {"y": self.by * x}


def test_what_a_function_uses_is_part_of_it(monkeypatch):
    def made(default=1, listed=(1,), inner=lambda x: x):
        def function(x, y=default, *, z=default):
            return {"r": inner(x) * y * z * listed[0] * FACTOR}

        return function

    def of_module(code):
        space = {"__name__": "somewhere"}
        exec(code, space)
        return space["f"]

    assert fingerprint(made()) == fingerprint(made())
    assert fingerprint(Scale(1).method) == fingerprint(Scale(1).method)
    functions = [made(), made(default=2), made(listed=[1]), made(listed=[2]), made(inner=lambda x: -x)]
    functions += [Scale(1), Scale(5), Scale(1).method, Scale(5).method, partial(made(), 1), partial(made(), [1])]
    functions += [of_module(f"g = lambda x: x + {n}\ndef f(x): return g(f(x))") for n in (1, 2)]
    prints = [fingerprint(function) for function in (*functions, torch.sin, torch.cos)]
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 2)
    prints.append(fingerprint(made()))
    assert len(set(prints)) == len(prints)
    assert fingerprint(of_module("def f(x): return x")) == fingerprint(of_module("# moved\n\ndef f(x): return x"))


def test_a_function_is_the_same_in_another_process(tmp_path, monkeypatch):
    """In which sets and hashes have another order."""
    (tmp_path / "mine.py").write_text(
        "sizes = [1, [2], {'a': (3,)}]\n"
        "def g(x, y=(1, 2)): return {'y': x} if x in {'abc', 'def', 'ghi', 'jkl'} else [y, sizes]\n"
        "def f(x, *, z={'k': [1]}): return [g(x), (lambda u: g(u))(x), z]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    here = fingerprint(importlib.import_module("mine").f)
    code = "import mine; from borat.lab.sweeps.sweep import fingerprint; print(fingerprint(mine.f))"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    there = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == here


def test_own_function_at_a_prompt(tmp_path):
    code = "from borat.lab import sweep\nfactor = 3\n"
    code += "def f(x, y): return {'product': factor * x * y}\n"
    code += "print([o.result['product'] for o in sweep(f, {'x': [1, 2], 'y': [5]}, workers=1)])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "[15.0, 30.0]\n", done.stderr


@pytest.mark.parametrize(
    ("grid", "options", "message"),
    [
        ({}, {}, "grid must have at least one key with one value, got {}"),
        ([], {}, "grid must have at least one key with one value, got []"),
        ({"rate": []}, {}, "rate must have at least one value in a grid"),
        ({"rate": 0.1}, {}, "rate must be a list of values in a grid, got 0.1"),
        ({"rat": [1]}, {}, "grid does not fit the function, which takes (rate, kind='plain', folder=None): missing"),
        ({"folder": ["here"]}, {}, "grid must not have the key 'folder'"),
        ({"rate": [1], "rat": [1]}, {}, "got an unexpected keyword argument 'rat'"),
        ({"rate": [object]}, {}, "rate must be a number, a string or a list of them"),
        (
            {"rate": [1]},
            {"workers": 1, "engine": LocalEngine()},
            "workers must not be given together with engine, got 1",
        ),
        ({"rate": [1]}, {"workers": 0}, "workers must be at least 1 or none, got 0"),
    ],
)
def test_mistakes_in_a_grid(tmp_path, learn, grid, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        sweep(learn, grid, folder=tmp_path, **options)
    assert not list(tmp_path.iterdir())


# The command


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["sweep", *arguments], env={"COLUMNS": "200"})


def test_dry_run_and_result_table(uninterrupted):
    shown = invoke("--out", str(uninterrupted), *FLAGS.split(), "--seed", "0,1", "--dry-run")
    assert shown.exit_code == 0
    assert "8 runs: 4 done, 4 to do" in shown.output
    assert re.search(rf"{CONFIGS[2].digest} │ BORAT3, lr 0.1, seed 0 +│ finished", shown.output)
    done = invoke("--out", str(uninterrupted), *FLAGS.split())
    assert done.exit_code == 0
    accuracies = [Run(uninterrupted / c.digest).metrics.result["test_accuracy"] for c in CONFIGS[2:]]
    row = re.search(r"BORAT3 │ +([\d.]+) % │ +([\d.]+) %", done.output)
    assert [float(number) for number in row.groups()] == [round(100 * x, 1) for x in accuracies]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to sweep"),
        (["--optimizer", "sgdd", "--dry-run"], "unknown optimizer 'sgdd'; did you mean 'sgd'?"),
        (["--data", "digitss"], "unknown data set 'digitss'; did you mean 'digits'?"),
        (["--model", "wrm-10-1"], "unknown model 'wrm-10-1'; did you mean 'wrn-10-1'?"),
        (["--data", "snli", "--model", "cnn", "--dry-run"], "model must be infersent for snli, got 'cnn'"),
        (["--optimizer", "dfw"], "loss must be"),
        (["--lr", "inf"], "lr must be a finite number, got inf"),
        (["--lr", "0.1,fast"], "lr must be of type float, got 'fast'"),
        (["--lr", "0.1,-1"], "lr must be at least 0, got -1"),
        (["--augment", "maybe"], "augment must be of type bool"),
        (["--lr", "1", "--engine", "rya"], "unknown engine 'rya'; did you mean 'ray'?"),
        (["--lr", "1", "--gpus-per-run", "0.5"], "gpus_per_run is an option of the engine 'ray', not of 'local'"),
        (
            ["--lr", "1", "--engine", "ray", "--workers", "2"],
            "workers is an option of the engine 'local', not of 'ray'",
        ),
    ],
)
def test_mistakes_on_the_command_line(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in re.sub(r"[\s│]+", " ", result.output)


def test_losses_of_language_models_are_shown(tmp_path):
    (tmp_path / "words.txt").write_text(" ".join(random.Random(0).choices(["bundle", "optimal", "ab"], k=300)))
    flags = ["--data", "text", "--data-dir", str(tmp_path / "words.txt"), "--model", "ngram-2-8", "--window", "8"]
    flags += ["--optimizer", "sgd,borat", "--lr", "0.01,1", "--epochs", "1", "--workers", "1", "--out", str(tmp_path)]
    result = invoke(*flags)
    assert result.exit_code == 0, result.output
    assert "Test loss" in result.output
    assert "test perplexity" in result.output
    assert "%" not in result.output
    assert "4 of 4 runs" in result.output


def test_progress_is_shown(uninterrupted, capsys):
    """Two runs are running according to their files, one is waiting, one has failed."""
    jobs = [TrainingJob(config.replace(epochs=9).as_dict(), uninterrupted / config.digest) for config in CONFIGS]
    progress = SweepProgress(jobs)
    for point in progress.points:
        point.outcome, point.is_new = None, True
    progress.points[3].outcome = Outcome(jobs[3].arguments, jobs[3].folder, "failed", error="Traceback\nno memory\n")
    for point in progress.points[:2]:
        os.utime(lock_of(point.job.folder))
    assert str(progress) == "1 of 4 done, 1 failed, 2 running, 1 waiting"
    assert (progress.done, progress.size) == (3 * 5 + 9, 4 * 9)
    with watching() as watch:
        watch(progress)
        watch(progress)
    assert capsys.readouterr().out == f"BORAT3, lr 1: failed: no memory ({progress})\n", "once"
