"""What the paper proves, checked on problems that meet its assumptions: convex losses, perfect interpolation,
one batch for all pieces of a bundle, no momentum."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from borat import BORAT
from borat.constraints import L2Ball

SIZES = [2, 3, 5, 9]


@dataclass
class Problem:
    """Losses of single batches that all vanish at ``solution``."""

    losses: list[Callable[[Tensor], Tensor]]
    solution: Tensor
    smoothness: float = math.inf
    lipschitz: float = math.inf

    def mean(self, w: Tensor) -> Tensor:
        return sum(loss(w) for loss in self.losses) / len(self.losses)


def least_squares() -> Problem:
    x, solution = torch.randn(6, 5, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    losses = [lambda w, a=a: 0.5 * (a @ (w - solution)).square().mean() for a in x]
    return Problem(losses, solution, smoothness=max(torch.linalg.eigvalsh(a.T @ a / 5)[-1].item() for a in x))


def separable_hinge() -> Problem:
    """Hinge losses of points that ``solution`` separates with a margin of one."""
    solution = torch.randn(8, dtype=torch.float64)
    x = torch.randn(6, 10, 8, dtype=torch.float64)
    scores = x @ solution
    x = x / scores.abs().clamp(max=1.0).unsqueeze(-1) * scores.sign().unsqueeze(-1)  # now <x, solution> >= 1
    losses = [lambda w, a=a: (1.0 - a @ w).clamp(min=0.0).mean() for a in x]
    return Problem(losses, solution, lipschitz=max(a.norm(dim=1).mean().item() for a in x))


def distances() -> Problem:
    """Distances to half-spaces that meet in ``solution``: convex, and Lipschitz with the constant 1."""
    solution = torch.randn(8, dtype=torch.float64)
    normals = nn.functional.normalize(torch.randn(12, 8, dtype=torch.float64), dim=1)
    losses = [lambda w, a=a: (a @ (w - solution)).clamp(min=0.0) for a in normals]
    return Problem(losses, solution, lipschitz=1.0)


PROBLEMS = [least_squares, separable_hinge, distances]


def run(problem: Problem, bundle_size: int, lr: float, updates: int, constraint=None, whole=False):
    """Yields the iterate before and after each update, with the optimizer."""
    w = nn.Parameter(torch.randn(8, dtype=torch.float64) * 3)
    optimizer = BORAT([w], lr, bundle_size, momentum=0.0, same_batch=True, constraint=constraint)
    for t in range(updates):
        loss_of = problem.mean if whole else problem.losses[t % len(problem.losses)]

        def closure(loss_of=loss_of):
            optimizer.zero_grad()
            loss = loss_of(w)
            loss.backward()
            return loss

        before = w.detach().clone()
        optimizer.step(closure)
        yield before, w.detach().clone(), optimizer


@pytest.mark.parametrize("make", PROBLEMS)
@pytest.mark.parametrize("bundle_size", SIZES)
@pytest.mark.parametrize("lr", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("projected", [False, True])
def test_progress_of_each_step(make, bundle_size, lr, projected):
    """|w' - w*|^2 <= |w - w*|^2 - 2 lr max D, for every convex loss and feasible w*."""
    problem = make()
    constraint = L2Ball(problem.solution.norm().item() * 1.001) if projected else None
    for before, after, optimizer in run(problem, bundle_size, lr, 40, constraint):
        old, new = (before - problem.solution).square().sum(), (after - problem.solution).square().sum()
        assert new <= old - 2 * lr * optimizer.last_step.dual_value + 1e-11 * (1 + lr)
        assert optimizer.last_step.dual_value >= -1e-14


@pytest.mark.parametrize("make", PROBLEMS)
@pytest.mark.parametrize("lr", [0.1, 10.0])
def test_larger_bundles_never_have_a_lower_dual_value(make, lr):
    """From the same point, on the same batch (the lemma on dual values)."""
    torch.manual_seed(3)
    problem = make()
    values = []
    for bundle_size in (2, 3, 4, 6, 8, 12):
        torch.manual_seed(4)
        _, _, optimizer = next(run(problem, bundle_size, lr, 1))
        values.append(optimizer.last_step.dual_value)
    assert all(b >= a - 1e-12 * abs(a) for a, b in pairwise(values))


@pytest.mark.parametrize("make", [separable_hinge, distances])
@pytest.mark.parametrize("bundle_size", SIZES)
@pytest.mark.parametrize("lr", [0.01, 0.3, 10.0])
def test_convex_and_lipschitz(make, bundle_size, lr):
    """f(mean of w_t) <= C sqrt(D^2 / (T+1)) + D^2 / (lr (T+1)) at every T, with D = |w_0 - w*|."""
    problem = make()
    total, start = torch.zeros(8, dtype=torch.float64), None
    for t, (before, _, _) in enumerate(run(problem, bundle_size, lr, 200, whole=True)):
        start = before if start is None else start
        total += before
        squared = (start - problem.solution).square().sum().item()
        bound = problem.lipschitz * math.sqrt(squared / (t + 1)) + squared / (lr * (t + 1))
        assert problem.mean(total / (t + 1)).item() <= bound


@pytest.mark.parametrize("share", [0.05, 0.3, 1.0])
def test_small_steps_on_smooth_losses_take_three_kinds_only(share):
    """For lr <= 1 / (2 beta) the ALIG, EALIG, MAX3 and ZERO subproblems are never the solution."""
    problem = least_squares()
    kinds = {o.last_step.kind for _, _, o in run(problem, 3, share / (2 * problem.smoothness), 300)}
    assert kinds <= {"SGD", "ESGD", "MAX2"}


def test_large_steps_take_others_too():
    problem = least_squares()
    kinds = {o.last_step.kind for _, _, o in run(problem, 3, 20 / problem.smoothness, 60)}
    assert kinds - {"SGD", "ESGD", "MAX2"}


@pytest.mark.parametrize("bundle_size", SIZES)
def test_the_distance_never_grows_and_vanishes(bundle_size):
    """Up to the rounding of distances that are zero by then."""
    problem = least_squares()
    gaps = [(after - problem.solution).norm().item() for _, after, _ in run(problem, bundle_size, 1e3, 600)]
    assert all(b <= a + 1e-11 for a, b in pairwise(gaps))
    assert gaps[-1] < 1e-6 * gaps[0]
