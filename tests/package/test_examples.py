"""Every example runs and prints the expected result."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from processes import free_port, output_of, run_program, start_program

FOLDER = Path(__file__).parents[2] / "examples"
PACKAGES = {
    "accelerate_loop": ["accelerate"],
    "fabric": ["lightning"],
    "huggingface_trainer": ["transformers", "accelerate"],
    "jax_equinox": ["optax", "equinox"],
    "jax_flax": ["optax", "flax"],
    "jax_loop": ["optax"],
    "lightning_trainer": ["lightning"],
    "sweep_own_model": ["pebble", "cloudpickle"],
    "tensorboard_logging": ["tensorboard"],
}


def code_of(name):
    return (FOLDER / f"{name}.py").read_text(encoding="utf-8")


def run(name, tmp_path, *words):
    for package in PACKAGES.get(name, []):
        pytest.importorskip(package, reason="needs the lab, trainers or jax extra")
    return run_program(code_of(name), tmp_path, *words)


@pytest.mark.parametrize(
    "name", ["accelerate_loop", "fabric", "jax_equinox", "jax_flax", "jax_loop", "lightning_trainer"]
)
def test_digits_are_learned(name, tmp_path):
    accuracy = re.search(r"accuracy ([\d.]+)%", run(name, tmp_path))
    assert float(accuracy[1]) > 90


def test_language_model_learns_to_count(tmp_path):
    before, after = re.search(r"([\d.]+) -> ([\d.]+)", run("huggingface_trainer", tmp_path)).groups()
    assert float(after) < 0.1 < 2 < float(before)


def test_transformer_learns_and_resumes_bit_for_bit(tmp_path):
    """One run of 30 steps equals a run of 12 steps that is resumed."""
    (tmp_path / "parts").mkdir()
    once = run("transformer", tmp_path, "--steps", "30").splitlines()
    run("transformer", tmp_path / "parts", "--steps", "12")
    twice = run("transformer", tmp_path / "parts", "--steps", "30").splitlines()
    assert twice[0].startswith("step 12: ")
    assert twice[-1] == once[-1], "the same test loss"
    first, last = (float(line.split()[-1]) for line in (once[0], once[-1]))
    assert last < 0.8 * first


def test_tensorboard_files_are_written(tmp_path):
    assert "285 steps, 142 updates" in run("tensorboard_logging", tmp_path)
    assert list((tmp_path / "runs").glob("events.out.tfevents.*"))


def test_sweep_is_not_repeated(tmp_path):
    """First as a script, which the worker processes import, then as code without a file."""
    pytest.importorskip("pebble", reason="needs the lab extra")
    first = run_script([sys.executable], "sweep_own_model", tmp_path)
    accuracies = [float(number) for number in re.findall(r"finished {.*} accuracy ([\d.]+)%", first)]
    assert len(accuracies) == 6
    assert accuracies[4] > 85 > 20 > accuracies[1], "at lr = 1, BORAT learns and SGD does not"
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert run("sweep_own_model", tmp_path) == first
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}


def assert_two_have_learned(output):
    accuracy = re.search(r"2 processes, accuracy on the training data ([\d.]+) %", output)
    assert float(accuracy[1]) > 95


def test_torchrun_on_two_processes(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    assert_two_have_learned(run_script(torchrun, "distributed_torchrun", tmp_path))


def test_shards_on_two_processes(tmp_path):
    """Without torchrun, with its environment variables."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    folders = [tmp_path / rank for rank in "01"]
    for folder in folders:
        folder.mkdir()
    code = code_of("distributed_torchrun")
    both = [start_program(code, folder, "--fsdp", RANK=folder.name, **common) for folder in folders]
    first, second = map(output_of, both, folders)
    assert_two_have_learned(first)
    assert not second


def run_script(launcher, name, tmp_path, *options):
    command = [*launcher, str(FOLDER / f"{name}.py"), *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_names_the_versions_that_are_tested():
    """The versions are those of constraints.txt, with which the tests run."""
    page = (FOLDER.parent / "docs" / "trainers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \|", page, re.MULTILINE)
    assert len(rows) == 5
    for name, version in rows:
        package = pytest.importorskip({"PyTorch": "torch"}.get(name, name.lower()), reason="needs the trainers extra")
        assert package.__version__.partition("+")[0] == version, name
