"""Each task learns, has the same scores for the same seed, and works with any optimizer."""

from __future__ import annotations

import math

import pytest
import torch

from borat import FreeBORAT
from borat.lab.tasks import TASKS, TaskResult, find_task, locate, run
from borat.lab.tasks.task import minibatches

IN_GYM = ("reinforce", "ppo")
PLATEAU = {"factorisation": 400}
"""Number of steps for tasks that start on a plateau."""


@pytest.fixture(params=TASKS)
def task(request):
    if request.param in IN_GYM:
        pytest.importorskip("gymnasium")
    return find_task(request.param)


def adamw(network: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(network.parameters(), lr=0.01)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_a_task_learns(task):
    steps = next((PLATEAU[name] for name in PLATEAU if isinstance(task, locate(name))), 60)
    result = run(task, adamw, steps=steps)
    untrained = run(task, lambda network: torch.optim.SGD(network.parameters(), lr=0.0), steps=1)
    assert result.status == "finished"
    assert all(len(losses) == steps for losses in result.losses.values())
    if not task.lower_is_better:  # the loss of a policy need not fall
        assert result.score > 1.5 * untrained.score
        return
    assert result.score < 0.95 * untrained.score
    assert result.validation_score < 0.95 * untrained.validation_score
    if len(result.losses) == 1:
        assert mean(result.losses["model"][-10:]) < mean(result.losses["model"][:5])


def test_the_seed_determines_the_run(task):
    first, again, other = (run(task, adamw, seed, steps=8) for seed in (1, 1, 2))
    assert (first.score, first.validation_score, first.losses) == (again.score, again.validation_score, again.losses)
    assert first.losses != other.losses
    assert first.score != first.validation_score


def test_free_borat_trains_every_task(task):
    """FreeBORAT needs the loss and is evaluated at another point than its gradients."""
    result = run(task, lambda network: FreeBORAT(network.parameters()), steps=20)
    assert result.status == "finished"
    assert math.isfinite(result.score)
    assert result.score > 0.0


def test_a_small_data_set_is_one_batch():
    batches = minibatches(64, torch.arange(5))
    assert [next(batches)[0].sort().values.tolist() for _ in range(3)] == 3 * [[0, 1, 2, 3, 4]]


def test_the_global_generator_is_restored():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    run(find_task("vae"), adamw, steps=2)
    assert torch.equal(torch.rand(3), expected)


def test_a_result_has_a_short_repr():
    assert "losses" not in repr(TaskResult(1.0, 2.0, {"model": [1.0]}, 3.0))
