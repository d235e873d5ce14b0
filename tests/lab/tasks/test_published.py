"""Problems of published benchmarks: the same problem, and the published results at the published settings."""

from __future__ import annotations

from itertools import islice
from statistics import fmean

import pytest
import torch
from torch.optim import SGD, Adam

from borat.lab.reproduce.reading import experiments_folder
from borat.lab.tasks import find_task, run

PLACE = experiments_folder() / "published.py"


def mean_score(name: str, make, seeds: int = 4) -> float:
    task = find_task(f"{PLACE}:{name}")
    return fmean(run(task, lambda model: make(model.parameters()), seed).score for seed in range(42, 42 + seeds))


def test_the_quadratic_is_that_of_deepobs():
    task = find_task(f"{PLACE}:QuadraticDeep")
    assert task.score(task.build(), "test") == pytest.approx(353.44676426478793, rel=1e-6), "in all published runs"
    eigenvalues = torch.linalg.eigvalsh(task.hessian.double())
    assert ((eigenvalues > 0) & (eigenvalues < 1)).sum() == 90
    assert ((eigenvalues > 30) & (eigenvalues < 60)).sum() == 10


def test_the_quadratic_repeats_its_batches():
    batches = [batch for (batch,) in islice(find_task(f"{PLACE}:QuadraticDeep").batches(None), 14)]
    assert all(torch.equal(first, again) for first, again in zip(batches[:7], batches[7:], strict=True))
    assert len(torch.cat(batches[:7]).unique(dim=0)) == 7 * 128


@pytest.mark.parametrize(("make", "published", "tolerance"), [
    (lambda params: SGD(params, lr=1.5848931925e-2), 87.40, 0.3),
    (lambda params: SGD(params, lr=2.5118864315e-3, momentum=0.99), 87.05, 0.05),
    (lambda params: Adam(params, lr=3.9810717055e-2), 87.11, 0.1),
    (lambda params: Adam(params, lr=1e-3), 106.7, 0.3),
])  # fmt: skip
def test_published_results_of_the_quadratic(make, published, tolerance):
    assert mean_score("QuadraticDeep", make) == pytest.approx(published, abs=tolerance)


@pytest.mark.parametrize(("make", "wrong", "loss"), [
    (lambda params: SGD(params, lr=0.2), 4.396, 0.2438),
    (lambda params: SGD(params, lr=0.2, momentum=0.9, nesterov=True), 0.612, 0.0429),
    (lambda params: Adam(params, lr=0.01), 0.835, 0.0459),
])  # fmt: skip
def test_published_results_of_the_perceptron(make, wrong, loss):
    assert mean_score("DigitsErrors", make) == pytest.approx(wrong, rel=0.2, abs=0.3)
    assert mean_score("DigitsLoss", make) == pytest.approx(loss, rel=0.25), "theirs is a mean over the last epoch"


def test_the_perceptron_sees_all_digits_in_an_epoch():
    task = find_task(f"{PLACE}:DigitsErrors")
    batches = list(islice(task.batches(None), 9))
    assert [len(labels) for _, labels in batches] == [200] * 8 + [197]
    assert torch.equal(torch.cat([labels for _, labels in batches]).bincount(), task.y.bincount())
    assert (task.x.min(), task.x.max()) == (0.0, 1.0)
