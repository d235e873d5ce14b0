"""Edge cases: typos, damaged runs, full disks, read-only folders, Ctrl-C, narrow terminals, pipes."""

from __future__ import annotations

import errno
import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

import fabricate
from borat.lab.cli import app, demo
from borat.lab.config import RunConfig
from borat.lab.robustness import Trial
from borat.lab.store.run import Run
from borat.lab.sweeps.engines.local import LocalEngine
from borat.lab.sweeps.jobs import JobProgress, TrainingJob
from borat.lab.sweeps.sweep import run_configs, sweep
from borat.lab.training.train import train
from processes import ended, start_borat, wait_until
from sockets import LOOPBACK, listening, needs_table

BORAT = [sys.executable, "-m", "borat"]
RATES = ("0.001", "0.01", "0.1", "1.0", "10.0", "100.0", "1000.0", "10000.0")


def invoke(*arguments: str):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "300", "TERM": "dumb"})


# Answers that need no PyTorch are given without importing it


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--help"], 0, "reproduce"),
        (["--version"], 0, "borat 0."),
        (["trian"], 2, "Did you mean 'train'"),
        (["train", "--epochs", "many"], 2, "error: epochs must be of type int, got 'many'\n"),
        (["sweep", "--lrr", "1"], 2, "--lr"),
        (["train", "--optimizer", "sdg"], 2, "did you mean 'sgd'?"),
        (["train", "--devices", "0"], 2, "devices must be at least 1"),
        (["train", "none.toml"], 2, "none.toml does not exist"),
        (["sweep"], 2, "nothing to sweep"),
        (["sweep", "--optimizer", "borat,sdg"], 2, "did you mean 'sgd'?"),
        (["report", "."], 2, "no runs in ."),
        (["report", "nowhere"], 2, "the folder nowhere does not exist"),
        (["bench", "WRN-4"], 2, "did you mean 'WRN-40-4'?"),
        (["bench", "--output", "nowhere/bench.md"], 2, "the folder nowhere does not exist"),
        (["demo", "--epochs", "0"], 2, "--epochs"),
        (["reproduce", "--help"], 0, "--scale"),
        (["reproduce", "--list"], 0, "optimizers to time"),
        (["reproduce", "scorebord"], 2, "did you mean 'scoreboard'?"),
        (["reproduce", "scoreboard", "--scale", "mni"], 2, "did you mean 'mini'?"),
    ],
)
def test_answers_without_pytorch(tmp_path, arguments, code, message):
    program = f"""
import sys
for name in ("torch", "numpy", "matplotlib"):
    sys.modules[name] = None
sys.argv = ["borat", *{arguments!r}]
from borat.__main__ import main
main()
"""
    wide = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, env=wide
    )
    assert done.returncode == code, done.stderr
    assert message in done.stdout + done.stderr


# Runs that are shorter than a bundle


def test_a_run_that_is_shorter_than_a_bundle_makes_one_update(tmp_path):
    config = RunConfig(optimizer="borat", bundle_size=40, epochs=2, train_limit=300, batch_size=100)
    with pytest.warns(UserWarning, match="bundle_size=40 needs 39 batches for an update, but epochs=2 .* give 6"):
        metrics = train(config, tmp_path / "run")
    assert [sum(epoch["kinds"].values()) for epoch in metrics.epochs] == [0, 1]
    assert Run(tmp_path / "run").load("last.pt")["optimizer"]["param_groups"][0]["bundle"]["position"] == 0


def test_batches_left_over_after_the_last_bundle_make_no_update(tmp_path):
    """Seven batches, three to a bundle: the last one alone must not move the weights."""
    config = RunConfig(optimizer="borat", bundle_size=4, epochs=1, train_limit=700, batch_size=100)
    metrics = train(config, tmp_path / "run")
    assert sum(metrics.epochs[0]["kinds"].values()) == 2
    assert Run(tmp_path / "run").load("last.pt")["optimizer"]["param_groups"][0]["bundle"]["position"] == 1


def test_a_run_of_one_bundle_is_not_warned_of(tmp_path):
    config = RunConfig(optimizer="borat", bundle_size=4, epochs=1, train_limit=300, batch_size=100)
    metrics = train(config, tmp_path / "run")
    assert sum(metrics.epochs[0]["kinds"].values()) == 1


# Damaged files


@pytest.fixture
def three_runs(tmp_path) -> list[RunConfig]:
    configs = [RunConfig(epochs=1, train_limit=200, optimizer="sgd", lr=lr) for lr in (0.1, 0.2, 0.3)]
    for config in configs:
        train(config, tmp_path / config.digest)
    return configs


def test_a_damaged_run_fails_alone_and_says_how_to_start_it_anew(tmp_path, three_runs):
    whole, cut, lost = (tmp_path / config.digest for config in three_runs)
    (cut / "metrics.json").write_text((cut / "metrics.json").read_text()[:20])
    (lost / "last.pt").write_bytes((lost / "last.pt").read_bytes()[:500])
    (lost / "metrics.json").unlink()
    command = ["sweep", "--out", str(tmp_path), "--workers", "1", "--lr", "0.1,0.2,0.3"]
    command += ["--epochs", "1", "--train-limit", "200", "--optimizer", "sgd"]

    listed = invoke(*command, "--dry-run")
    assert listed.exit_code == 0
    assert f"damaged: {cut}/metrics.json cannot be read" in listed.output
    first = invoke(*command)
    assert first.exit_code == 1, first.output
    assert f"{cut}/metrics.json cannot be read: delete it to go on from the checkpoint" in first.output
    assert f"{lost}/last.pt cannot be read: delete it to start the run anew" in first.output
    assert "1 of 3 runs are in" in first.output
    assert Run(whole).metrics.status == "finished"

    (cut / "metrics.json").unlink()
    (lost / "last.pt").unlink()
    second = invoke(*command)
    assert second.exit_code == 0, second.output
    assert {Run(folder).metrics.status for folder in (whole, cut, lost)} == {"finished"}


@pytest.mark.parametrize("text", ["", "[]", "null", '{"loss": 1.0}', '{"epochs": null}', '{"epochs": [1]}', "\x00\x01"])
def test_whatever_a_damaged_file_holds_only_its_run_fails(tmp_path, text):
    config = RunConfig(epochs=1)
    (fabricate.write_run(tmp_path, config, accuracy=0.5).path / "metrics.json").write_text(text)
    with pytest.raises(ValueError, match=rf"{config.digest}/metrics.json .*delete it to go on from the checkpoint"):
        TrainingJob(config.as_dict(), tmp_path / config.digest).outcome()
    assert JobProgress(TrainingJob(config.as_dict(), tmp_path / config.digest)).outcome is None


def double(x: float) -> dict[str, float]:
    return {"doubled": 2.0 * x}


@pytest.mark.parametrize("text", ["{", "[2.0]"])
def test_a_damaged_result_of_ones_own_function_fails_alone(tmp_path, text):
    sweep(double, {"x": [1.0, 2.0]}, folder=tmp_path, workers=1)
    result = next(path for path in tmp_path.glob("*/result.json") if "2.0" in path.read_text())
    result.write_text(text)
    outcomes = sweep(double, {"x": [1.0, 2.0]}, folder=tmp_path, workers=1)
    assert [outcome.status for outcome in outcomes] == ["failed", "finished"]
    assert f"{result} cannot be read: delete it to compute it again" in outcomes[0].error


# Disks


@pytest.fixture
def small_disk(tmp_path):
    """600 kB: room for one checkpoint."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only the administrator may mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_named(small_disk):
    result = invoke("train", "--epochs", "3", "--no-tensorboard", "--out", str(small_disk))
    folder = small_disk / RunConfig(epochs=3).digest
    assert result.exit_code == 1
    assert f"no space left for {folder / 'last.pt'}: free some space" in result.output
    assert "Usage" not in result.output
    assert Run(folder).load("best.pt") is not None
    assert not [path for path in folder.iterdir() if path.name.startswith(".")], "no partial file is left"


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [
        (errno.ENOSPC, 1, "no space left for report.html: free some space"),
        (errno.EDQUOT, 1, "quota exceeded for report.html: free some space"),
        (errno.ENOENT, 2, "No such file"),
    ],
)
def test_a_full_disk_is_no_usage_error(monkeypatch, number, code, message):
    def fail(folder):
        raise OSError(number, os.strerror(number), "report.html")

    monkeypatch.setattr("borat.lab.cli.report.check_folder", fail)
    result = invoke("report", ".")
    assert result.exit_code == code
    assert message in result.output
    assert result.output.startswith("error: ")
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("command", ["train", "sweep"])
@pytest.mark.parametrize("out", ["file", "file/runs"])
def test_a_folder_that_cannot_be_written_is_refused_before_anything_starts(tmp_path, out, command):
    """Before the data are loaded, which do not exist either."""
    (tmp_path / "file").write_text("")
    flags = ["--data", "cifar10", "--data-dir", str(tmp_path)] if command == "train" else []
    result = invoke(command, "--lr", "1", *flags, "--out", str(tmp_path / out))
    assert result.exit_code == 2
    folder = tmp_path / out / RunConfig(data="cifar10", lr=1.0).digest if command == "train" else tmp_path / out
    assert f"the folder {folder} cannot be written" in result.output
    assert "logs" not in result.output


@pytest.mark.parametrize("out", ["file", "file/runs"])
def test_no_worker_is_started_for_a_folder_that_cannot_be_written(tmp_path, out):
    (tmp_path / "file").write_text("")

    class Unused(LocalEngine):
        def run(self, calls):
            raise AssertionError("no worker is started")
            yield

    with pytest.raises(OSError, match="cannot be written"):
        run_configs([RunConfig()], tmp_path / out, engine=Unused())


# Ctrl-C


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into a process")
@pytest.mark.parametrize(
    ("command", "library"),
    [
        (("train", "--epochs", "9999"), "libtorch_cpu"),
        (("sweep", "--epochs", "9999", "--lr", "1,2"), "_multiarray_umath"),
    ],
)
def test_ctrl_c_in_the_first_seconds_is_one_line(tmp_path, command, library):
    words = [*BORAT, *command, "--out", str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            wait_until(lambda: library in Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8"))
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    assert said == "stopped; rerun the command to start again\n"


def test_ctrl_c_later_is_one_line(tmp_path):
    process = start_borat("train", "--epochs", "9999", "--out", str(tmp_path / "runs"), output=tmp_path / "said.txt")
    try:
        wait_until(lambda: list(tmp_path.glob("runs/*/metrics.json")))
        os.kill(process.pid, signal.SIGINT)
    finally:
        code = ended(process)
    said = (tmp_path / "said.txt").read_text()
    assert code == 130
    assert re.fullmatch(r"stopped at epoch \d+, batch \d+; resume to continue\n", said)


# Processes and ports


@needs_table
def test_processes_of_one_machine_meet_where_no_other_can_reach_them(tmp_path):
    """On a single core, so that two processes are too many, which gives a warning."""
    core = min(os.sched_getaffinity(0))
    command = [*BORAT, "train", "--devices", "2", "--epochs", "1", "--accelerator", "cpu", "--out", str(tmp_path)]
    files = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    found = set()
    with subprocess.Popen(command, preexec_fn=lambda: os.sched_setaffinity(0, {core}), **files) as process:
        while process.poll() is None:
            found |= listening(process.pid)
            time.sleep(0.1)
        said = process.stdout.read()
    assert process.returncode == 0, said
    assert found
    assert found <= LOOPBACK
    assert "warning: devices=2 processes share 1 cores: devices=1 would be faster\nstarting 2 processes\n" in said
    assert said.count("warning") == 1, "one process prints it"


# Narrow terminals and pipes


def in_terminal(columns: int, *arguments: str) -> str:
    """Return the output of a command in a terminal with this many columns, without colours."""
    leader, terminal = pty.openpty()
    environment = {"COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"}
    process = start_borat(*arguments, output=os.ttyname(terminal), **environment)
    said = b""
    while process.is_alive() or select.select([leader], [], [], 0.0)[0]:
        if select.select([leader], [], [], 0.1)[0]:
            said += os.read(leader, 65536)
    os.close(terminal)
    os.close(leader)
    assert process.exitcode == 0, said
    return said.decode().replace("\r\n", "\n")


def in_file(path: Path, *arguments: str, **environment: str) -> str:
    process = start_borat(*arguments, output=path, **environment)
    assert ended(process) == 0, path.read_text()
    return path.read_text()


@pytest.fixture(scope="module")
def grid(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("grid")
    for rate in RATES:
        fabricate.write_run(folder, RunConfig(lr=float(rate), epochs=2), accuracy=0.5)
    return folder


@pytest.mark.parametrize("count", [3, len(RATES)])
def test_a_sweep_in_60_columns(grid, count):
    said = in_terminal(60, "sweep", "--epochs", "2", "--lr", ",".join(RATES[:count]), "--out", str(grid))
    shown = re.sub(r"\x1b\[[0-9?;]*[a-zA-Z]", "", said)
    assert shown.count("50.0 %") == count
    for rate in RATES[:count]:
        assert f"lr {float(rate):g}" in shown
    assert "…" not in shown
    assert not re.search(r"\x1b\[[0-9;]*3\dm", said), "no colours"
    assert max(len(line) for line in shown.splitlines() if "runs are in" not in line) <= 60


def test_a_sweep_in_a_file(grid, tmp_path, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    command = ["sweep", "--epochs", "2", "--lr", ",".join(RATES), "--out", str(grid)]
    said = in_file(tmp_path / "said.txt", *command)
    assert f"{len(RATES)} of {len(RATES)} runs are in {grid}\n" in said
    (row,) = (line for line in said.splitlines() if "BORAT3" in line)
    assert row.count("50.0 %") == len(RATES), "the table is not folded"
    assert "\x1b" not in said


def test_the_demo_fits_into_60_columns():
    trials = [Trial(m, lr, 8.0, 0.94) for m in ("SGD", "ALI-G", "BORAT3", "BORAT5") for lr in demo.LEARNING_RATES]
    text = io.StringIO()
    Console(file=text, width=60).print(demo.result_table("cross-entropy", trials))
    said = text.getvalue()
    assert "…" not in said
    for word in ("SGD", "ALI-G", "BORAT3", "BORAT5", "5/5"):
        assert word in said
    assert said.count("94.0") == len(trials)


def test_training_in_60_columns_and_in_a_file(tmp_path):
    flags = ["--epochs", "30", "--no-tensorboard", "--out"]
    said = in_terminal(60, "train", *flags, str(tmp_path / "terminal"))
    bars = [line for line in re.split(r"[\r\n]|\x1b\[[0-9?]*[a-zA-Z]", said) if line.startswith("epoch")]
    assert any(re.match(r"epoch \d+ of 30  loss [\d.]+  accuracy [\d.]+ % ━+.* 0:00:\d\d", bar) for bar in bars), bars
    assert all(len(bar) <= 60 and "…" not in bar for bar in bars)
    piped = in_file(tmp_path / "said.txt", "train", *flags, str(tmp_path / "pipe"))
    assert re.fullmatch(
        rf"finished after 30 epochs: test loss [\d.]+, test accuracy [\d.]+\nstored in {tmp_path}/pipe/\w+\n", piped
    )


# Flags


@pytest.mark.parametrize(("words", "message"), [
    (["train", "--lr", "fast"], "lr must be of type float, got 'fast'"),
    (["train", "--lr", "0.1,1"], "lr must be of type float, got '0.1,1'"),
    (["train", "--radius", "wide"], "radius must be of type float, got 'wide'"),
    (["train", "--augment", "maybe"], "augment must be of type bool, got 'maybe'"),
    (["train", "--devices", "two"], "Invalid value for '--devices': must be of type int, got 'two'"),
    (["sweep", "--workers", "two"], "Invalid value for '--workers': must be of type int, got 'two'"),
    (["bench", "--rounds", "0"], "Invalid value for '--rounds': must be at least 1, got '0'"),
    (["train", "--epohcs", "3"], "No such option: --epohcs (Possible options: --epochs, --steps)"),
    (["trian"], "No such command 'trian'. Did you mean 'train'?"),
    (["reproduce"], "no experiment given: --list shows their names"),
])  # fmt: skip
def test_a_mistake_is_one_line(words, message):
    result = invoke(*words)
    assert result.exit_code == 2
    assert result.output == f"error: {message}\n"


def test_the_command_alone_shows_its_help():
    result = invoke()
    assert result.exit_code == 2
    assert "Usage" in result.output
    assert "error" not in result.output


def test_every_flag_has_a_help_text():
    for name, command in get_command(app).commands.items():
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}"
