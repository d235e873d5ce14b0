"""Bounds from the paper's theorems, and runs of the optimizer to compare with them.

The theorems assume one batch for all pieces of a bundle, and no momentum. If a statement is wrong as printed, the bound
here is what its proof gives, see ``docs/theory.md``. All bounds allow for a small ``error``, the best loss of a batch,
which the logistic loss needs; with ``error = 0`` they are the paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from borat._numbers.step_info import StepInfo
from borat._optim.base import Constraint
from borat._optim.borat import BORAT
from theory_problems import BatchLoss, Problem

Bound = Callable[[Problem, float, int], Tensor]
"""Maps a problem, a learning rate and a number of updates to the bound after 1, 2, ... updates."""


@dataclass(frozen=True)
class Trace:
    """A run. ``points`` has a row for the start and one for each update."""

    points: Tensor
    losses: Tensor
    steps: Sequence[StepInfo]


def run(
    problem: Problem, bundle_size: int, lr: float, order: Sequence[int], constraint: Constraint | None = None
) -> Trace:
    """Make one update of BORAT on each of the batches in ``order``."""
    w = nn.Parameter(problem.start.clone())
    optimizer = BORAT([w], lr, bundle_size, momentum=0.0, constraint=constraint, same_batch=True)
    points, losses, steps = [w.detach().clone()], [], []
    for index in order:

        def closure(loss_of: BatchLoss = problem.losses[index]) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(w)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        loss = optimizer.step(closure)
        assert isinstance(loss, Tensor)
        assert optimizer.last_step is not None
        losses.append(loss.detach())
        steps.append(optimizer.last_step)
        points.append(w.detach().clone())
    return Trace(torch.stack(points), torch.stack(losses), steps)


# Quantities that the theorems bound


@torch.no_grad()
def gap_of_the_average(problem: Problem, trace: Trace) -> Tensor:
    """Return ``f`` at the mean of ``w_0, ..., w_T``, for T = 0, 1, ..."""
    counts = torch.arange(1, len(trace.points)).unsqueeze(1)
    averages = trace.points[:-1].cumsum(0) / counts
    return torch.stack([problem.mean(w) for w in averages])


@torch.no_grad()
def gap_of_the_last(problem: Problem, trace: Trace) -> Tensor:
    """Return ``f`` at ``w_{T+1}``, for T = 0, 1, ..."""
    return torch.stack([problem.mean(w) for w in trace.points[1:]])


# The bounds, for T = 0, 1, ..., updates - 1


def lipschitz_bound(problem: Problem, lr: float, updates: int) -> Tensor:
    """Bound for convex and Lipschitz: ``C sqrt(D^2 / (T+1)) + D^2 / (lr (T+1))``, of the average."""
    budget, count = _budget(problem, lr, updates)
    return (problem.lipschitz * (budget / count).sqrt() + budget / (lr * count)).amin(0)


def smooth_bound(problem: Problem, lr: float, updates: int) -> Tensor:
    """Bound for convex and smooth: ``D^2 / (min(lr, 1 / (2 beta)) (T+1))``, of the average."""
    budget, count = _budget(problem, lr, updates)
    return (budget / (_smallest_step(problem, lr) * count)).amin(0)


def strongly_convex_bound(problem: Problem, lr: float, updates: int) -> Tensor:
    """Bound for strongly convex, smooth: ``beta/2 exp(-alpha min(lr, 1 / (2 beta)) T / 2) D^2``, of the last point."""
    return _linear_bound(problem, problem.strong_convexity * _smallest_step(problem, lr) / 2, updates)


def secant_bound(problem: Problem, lr: float, updates: int) -> Tensor:
    """Bound for RSI and smooth, N = 3: ``beta/2 exp(-3/8 lr mu T) D^2``, of the last point."""
    return _linear_bound(problem, 3 / 8 * lr * problem.secant, updates)


def largest_secant_lr(problem: Problem) -> float:
    """Return the largest learning rate that the theorem on RSI allows."""
    beta, mu = problem.smoothness, problem.secant
    return min(1 / (4 * beta), 1 / (4 * mu), mu / (2 * beta**2))


def _budget(problem: Problem, lr: float, updates: int) -> tuple[Tensor, Tensor]:
    """Return bounds on the total decrease of the squared distance to each solution, and the numbers of updates."""
    count = torch.arange(1, updates + 1, dtype=torch.float64)
    return problem.squared_distances.unsqueeze(1) + 2 * lr * problem.errors.unsqueeze(1) * count, count


def _smallest_step(problem: Problem, lr: float) -> float:
    """Return the smallest step size that ALI-G can take on a smooth loss."""
    return min(lr, 1 / (2 * problem.smoothness))


def _linear_bound(problem: Problem, rate: float, updates: int) -> Tensor:
    decay = torch.exp(-rate * torch.arange(updates, dtype=torch.float64))
    return problem.smoothness / 2 * decay * problem.squared_distances[0]
