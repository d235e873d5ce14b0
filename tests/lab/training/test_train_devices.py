"""Training on several devices equals training on one, even if it is interrupted."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from borat.lab.config import Execution
from borat.lab.store.run import Run
from borat.lab.training.train import Interrupted, train
from processes import count_group, ended, free_port, start_borat, start_warm, wait_until
from train_worker import CONFIG, config_of, train_pairs

PAIRS = (
    "ddp:borat",
    "ddp:borat:resumed",
    "fsdp:borat",
    "fsdp:borat:resumed",
    "fsdp:sps:resumed",
    "ddp:sgd",
    "ddp:momo",
    "ddp:l4adam",
    "ddp:schedule-free",
    "fsdp:adam",
)


def start_on_one(folder: Path, optimizer: str) -> None:
    """Interrupt a run of a single process within a bundle of its second epoch."""

    def stop_at(position, tally, batches):
        if (position.epoch, position.batch) == (1, 4):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        train(config_of(optimizer), folder, execution=Execution(accelerator="cpu", tensorboard=False), listener=stop_at)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Folder with a run of two processes for each strategy and optimizer."""
    folder = tmp_path_factory.mktemp("devices")
    for pair in PAIRS:
        if pair.endswith(":resumed"):
            start_on_one(folder / pair, pair.split(":")[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    workers = [start_warm(train_pairs, folder, PAIRS, **common, LOCAL_RANK=str(rank)) for rank in range(2)]
    try:
        for worker in workers:
            worker.join(timeout=240)
        assert [worker.exitcode for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
    return folder


def numbers(run: Run) -> list[float]:
    epochs = [value for epoch in run.metrics.epochs for key, value in sorted(epoch.items()) if key != "seconds"]
    return [x for x in (*epochs, *run.metrics.result.values()) if isinstance(x, float)]


def assert_same_numbers(ours: Run, theirs: Run) -> None:
    assert numbers(ours) == pytest.approx(numbers(theirs), rel=1e-8, abs=1e-10)
    a, b = ours.load("last.pt")["model"], theirs.load("last.pt")["model"]
    assert a.keys() == b.keys()
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("pair", PAIRS)
def test_two_devices_equal_one(pair, folder, tmp_path):
    alone = tmp_path / "alone"
    train(config_of(pair.split(":")[1]), alone, execution=Execution(accelerator="cpu", tensorboard=False))
    assert_same_numbers(Run(folder / pair), Run(alone))


def test_interrupted_on_two_devices_and_resumed_on_one(tmp_path):
    """One of the two processes receives the signal; both stop at the same batch."""
    config = CONFIG.replace(epochs=25)
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in config.as_dict().items() if v is not None and k != "augment"]
    words = ["train", f"--out={tmp_path}", "--no-tensorboard", *flags]
    folder = tmp_path / config.digest
    two = start_borat(*words, "--devices=2", "--strategy=fsdp", "--accelerator=cpu")
    try:
        wait_until(lambda: (folder / "metrics.json").exists() or not two.is_alive())
        two.terminate()
    finally:
        code = ended(two, 60.0)
    assert code == 130
    state = Run(folder).load("last.pt")
    assert 0 < state["position"]["epoch"] < 25
    train(config, folder, execution=Execution(accelerator="cpu"))
    train(config, tmp_path / "alone", execution=Execution(accelerator="cpu", tensorboard=False))
    assert numbers(Run(folder)) == pytest.approx(numbers(Run(tmp_path / "alone")), rel=1e-5, abs=1e-7)


@pytest.fixture
def starting(tmp_path, request):
    """The first process, when it has just started the others, which take seconds to import libraries."""
    devices = getattr(request, "param", 2)
    words = ["train", "--devices", str(devices), "--accelerator", "cpu", "--epochs", "400", "--no-tensorboard", "--out"]
    first = start_borat(*words, str(tmp_path), output=tmp_path / "said.txt", leader=True)
    wait_until(lambda: count_group(first) == devices)
    yield first
    with suppress(ProcessLookupError):
        os.killpg(first.pid, signal.SIGKILL)
    first.join()


def test_no_process_is_left_when_the_first_is_killed_at_the_start(starting):
    starting.kill()
    starting.join()
    wait_until(lambda: count_group(starting) == 0)


@pytest.mark.parametrize(("starting", "send"), [(2, os.killpg), (8, os.killpg), (2, os.kill)], indirect=["starting"])
def test_ctrl_c_while_processes_start_is_one_line(starting, send, tmp_path):
    """A terminal sends Ctrl-C to all processes, even those that are still starting; a program may send it to one."""
    send(starting.pid, signal.SIGINT)
    assert ended(starting, 60.0) == 130
    _, said = re.split(r"starting \d processes\n", (tmp_path / "said.txt").read_text())
    assert said == "stopped; rerun the command to continue\n"
    wait_until(lambda: count_group(starting) == 0)  # the last one may still be exiting


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method")
def test_compiled_models_learn_the_same(tmp_path):
    config = CONFIG.replace(epochs=1, train_limit=96)
    train(config, tmp_path / "compiled", execution=Execution(compile=True, tensorboard=False))
    train(config, tmp_path / "plain", execution=Execution(tensorboard=False))
    assert_same_numbers(Run(tmp_path / "compiled"), Run(tmp_path / "plain"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": 0}, "devices must be at least 1, got 0"),
        ({"strategy": "dp"}, "strategy must be one of auto, ddp, fsdp, got 'dp'"),
        ({"accelerator": "abacus"}, "accelerator must be one of"),
        ({"compile": "yes"}, "compile must be of type bool"),
    ],
)
def test_rejects(arguments, message):
    with pytest.raises(ValueError, match=message):
        Execution(**arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_device_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"devices=1, accelerator='gpu'"):
        train(CONFIG, tmp_path / "run", execution=Execution(accelerator="gpu"))
