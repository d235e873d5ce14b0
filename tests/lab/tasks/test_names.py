"""Tasks by name, from a file and from a module; errors suggest the nearest name."""

from __future__ import annotations

import sys

import pytest
import torch

from borat.lab.tasks import TASKS, find_task, run

OWN = """
import torch
from torch import nn
from borat.lab.tasks import TrainingTask


class MyTask(TrainingTask):
    steps = 20
    metric = "distance"

    def build(self):
        return nn.Linear(2, 1)

    def batches(self, model):
        while True:
            yield torch.randn(4, 2)

    def loss(self, model, batch):
        return (model(batch) - batch.sum(1, keepdim=True)).square().mean()

    def score(self, model, split):
        return float((model.weight - 1.0).norm())
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "mytask.py"
    path.write_text(OWN, encoding="utf-8")
    return path


def test_there_are_many_tasks():
    assert len(TASKS) >= 14


def test_a_task_from_a_file(own):
    task = find_task(f"{own}:MyTask")
    result = run(task, lambda network: torch.optim.SGD(network.parameters(), lr=0.1))
    assert task.metric == "distance"
    assert result.score < 0.1


def test_a_task_from_a_module(own, monkeypatch):
    monkeypatch.syspath_prepend(own.parent)
    assert find_task("mytask:MyTask").steps == 20
    del sys.modules["mytask"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("difusion", "unknown task 'difusion'; did you mean 'diffusion'?"),
        ("nowhere.py:MyTask", "task must name a Python file that exists, got 'nowhere.py'"),
        ("no_such_module:MyTask", "task must name a module that can be imported, got 'no_such_module'"),
    ],
)
def test_a_wrong_name_suggests_the_nearest(name, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        find_task(name)


def test_a_wrong_class_suggests_the_nearest(own):
    with pytest.raises(ValueError, match=r"unknown task of .*mytask.py 'MyTsk'; did you mean 'MyTask'\?"):
        find_task(f"{own}:MyTsk")
    with pytest.raises(ValueError, match=r"unknown task of .*mytask.py 'nn'; known are MyTask"):
        find_task(f"{own}:nn")


def test_a_missing_gymnasium_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    task = find_task("ppo")
    with pytest.raises(ValueError, match=r"needs gymnasium, which is missing: pip install 'borat\[gym\]'"):
        run(task, lambda network: torch.optim.SGD(network.parameters(), lr=0.1), steps=1)
