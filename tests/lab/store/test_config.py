"""Configurations, files and the directories of runs."""

from __future__ import annotations

import json

import pytest
import torch

from borat.lab.config import RunConfig
from borat.lab.files import read_mapping, write_atomically
from borat.lab.store.run import Metrics, Run
from fabricate import find_runs


def test_round_trip_through_a_mapping():
    config = RunConfig(lr=3, radius=50, epochs=2)
    assert config.lr == 3.0
    assert isinstance(config.lr, float)
    assert RunConfig(**config.as_dict()) == config
    assert config.replace(lr=0.5).lr == 0.5


def test_digest_names_the_configuration():
    assert RunConfig(lr=1).digest == RunConfig(lr=1.0).digest
    assert RunConfig(lr=1.0).digest != RunConfig(lr=2.0).digest


@pytest.mark.parametrize(
    ("name", "text"), [("run.toml", 'data = "cifar10"\nlr = 1'), ("run.json", '{"lr": 1, "data": "cifar10"}')]
)
def test_files(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_mapping(tmp_path / name) == {"data": "cifar10", "lr": 1}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rat": 1}, "unknown key 'learning_rat'"),
        ({"epoch": 1}, "unknown key 'epoch'; did you mean 'epochs'"),
        ({"lr": "fast"}, "lr must be of type float, got 'fast'"),
        ({"radius": True}, "radius must be of type float or none, got True"),
        ({"epochs": 2.5}, r"epochs must be of type int, got 2\.5"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"lr": -1.0}, "lr must be at least 0"),
        ({"lr": float("nan")}, "lr must be a finite number, got nan"),
        ({"momentum": 1.0}, "momentum must be less than 1"),
        ({"label_noise": 1.5}, "label_noise must be at most 1"),
        ({"radius": 0.0}, "radius must be greater than 0 or none"),
        ({"radius": float("inf")}, "radius must be a finite number or none, got inf"),
        ({"weight_decay": float("inf")}, "weight_decay must be a finite number, got inf"),
        ({"loss": "mse"}, "loss must be one of ce, hinge, smooth-hinge, top5, got 'mse'"),
        ({"precision": "8"}, "precision must be one of"),
    ],
)
def test_rejects(values, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(**values)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", b"lr = ", "a.toml is not valid"),
        ("latin.toml", b'data = "caf\xe9"', r"latin\.toml is not valid"),
        ("a.json", b"[1]", "must hold keys and values"),
        ("b.toml", None, "does not exist"),
        ("", None, "is a folder"),
    ],
)
def test_rejects_files(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_mapping(tmp_path / name)


def test_a_run_is_stored(tmp_path):
    config = RunConfig(lr=2.0)
    run = Run.create(tmp_path / "a", config, data={"name": "digits"})
    run.write_metrics(Metrics("finished", [{"epoch": 0, "loss": 1.5}], {"test_accuracy": 0.9}))
    run.save("last.pt", {"w": torch.arange(3)})
    (again,) = find_runs(tmp_path)
    assert again.config == config
    assert again.metrics.result == {"test_accuracy": 0.9}
    assert torch.equal(again.load("last.pt")["w"], torch.arange(3))
    assert again.load("best.pt") is None
    environment = json.loads((tmp_path / "a" / "environment.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__
    assert environment["data"] == {"name": "digits"}


def test_a_run_keeps_its_configuration(tmp_path):
    Run.create(tmp_path, RunConfig(lr=2.0))
    Run.create(tmp_path, RunConfig(lr=2.0))
    with pytest.raises(ValueError, match="another configuration: lr, epochs differ"):
        Run.create(tmp_path, RunConfig(lr=1.0, epochs=3))


def test_foreign_and_broken_folders(tmp_path):
    (tmp_path / "photo.jpg").write_text("")
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        Run.create(tmp_path, RunConfig())
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        _ = Run(tmp_path).config


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(temporary):
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("left", [[], [".config.json.123"], ["config.json"], ["config.json", ".environment.json.9"]])
def test_a_kill_during_creation_loses_nothing(tmp_path, left):
    whole = Run.create(tmp_path / "whole", RunConfig(), data={"sizes": {"train": 3}})
    (tmp_path / "killed").mkdir()
    for name in left:
        text = (whole.path / name).read_text() if not name.startswith(".") else "{"
        (tmp_path / "killed" / name).write_text(text)
    run = Run.create(tmp_path / "killed", RunConfig(), data={"sizes": {"train": 3}})
    assert run.config == RunConfig()
    assert run.environment == whole.environment


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    Run.create(tmp_path, RunConfig())
    (tmp_path / ".last.pt.1234").write_text("half")
    Run.create(tmp_path, RunConfig())
    assert not (tmp_path / ".last.pt.1234").exists()


def test_a_run_keeps_its_data(tmp_path):
    Run.create(tmp_path, RunConfig(), data={"sizes": {"train": 3}, "sources": ["a"]})
    Run.create(tmp_path, RunConfig(), data={"sizes": {"train": 3}, "sources": ["moved"]})
    with pytest.raises(ValueError, match=r"a run on other data: it used .*'train': 3.*, got .*'train': 4"):
        Run.create(tmp_path, RunConfig(), data={"sizes": {"train": 4}})


@pytest.mark.parametrize("content", [b"", b"PK", b"\x80\x02half"])
def test_a_broken_checkpoint_is_named(tmp_path, content):
    run = Run.create(tmp_path, RunConfig())
    (tmp_path / "last.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"last\.pt cannot be read"):
        run.load("last.pt")
