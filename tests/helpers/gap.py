"""FreeBORAT's measured gap: proved bounds, problems that meet the assumptions, and counter-examples.

``docs/theory.md`` has the statements and the proofs. All bounds are compared with runs of the optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from borat._numbers.ops import host_ops
from borat._numbers.rolling import START, WON, measure_gap, new_rolling
from borat._optim.free_borat import FreeBORAT
from borat.constraints import Box
from theory_problems import Problem


@dataclass(frozen=True)
class Readings:
    """Numbers of the rule after each of a sequence of losses."""

    mean: Tensor  # the running mean m
    average: Tensor  # the mean r of all losses
    won: Tensor  # w
    lost: Tensor  # l


def read(losses: Sequence[float], beta: float = 0.9) -> Readings:
    """Measure the gap of a sequence of losses."""
    ops, state, rows = host_ops(1), new_rolling(2), []
    for k, loss in enumerate(losses, start=1):
        state = measure_gap(ops, state, loss, 0.0, 1.0, 1.0, beta)[0]._replace(batches=k)
        rows.append((state.mean, state.average, state.won, state.lost))
    return Readings(*torch.tensor(rows, dtype=torch.float64).T)


@dataclass(frozen=True)
class FreeTrace:
    """A run of FreeBORAT: one row for each batch.

    Attributes:
        points: ``y``, where the batch was measured.
        centres: ``z`` before the batch, and in a last row after the last batch.
        results: ``x`` after the batch.
        metric: the diagonal of ``D``, with the batch.
        gamma: ``<g, g / D>``.
        taus: the step size ``tau``.
        dropped: the number of dropped batches.
    """

    points: Tensor
    centres: Tensor
    results: Tensor
    losses: Tensor
    gradients: Tensor
    metric: Tensor
    gamma: Tensor
    taus: Tensor
    gaps: Tensor
    dropped: int


def run_free(problem: Problem, bundle_size: int, order: Sequence[int], box: float | None = None) -> FreeTrace:
    """Take the batches in ``order``, with all coordinates of the centre within ``box`` of 0."""
    w = nn.Parameter(problem.start.clone())
    constraint = None if box is None else Box(-box, box)
    optimizer = FreeBORAT([w], bundle_size, constraint=constraint)
    beta2 = optimizer.param_groups[0]["betas"][1]
    points, centres, losses, gradients, taus, gaps = [], [w.detach().clone()], [], [], [], []
    for index in order:
        optimizer.zero_grad()
        loss = problem.losses[index](w)
        loss.backward()  # type: ignore[no-untyped-call]
        assert w.grad is not None
        points.append(w.detach().clone())
        losses.append(loss.detach())
        gradients.append(w.grad.clone())
        optimizer.step(loss=loss)
        info = optimizer.last_step
        assert info is not None
        assert isinstance(info.step_size, float)
        taus.append(info.step_size)
        gaps.append(info.gap)
        centres.append(optimizer.state[w]["centre"].detach().clone())
    g, z = torch.stack(gradients), torch.stack(centres)
    metric, square = torch.empty_like(g), torch.zeros_like(w)
    results, x = torch.empty_like(g), z[0]
    for k in range(len(g)):
        square = beta2 * square + (1.0 - beta2) * g[k].square()
        metric[k] = (square / (1.0 - beta2 ** (k + 1))).sqrt() + optimizer.param_groups[0]["eps"]
        x = x + 2.0 / (k + 2.0) * (z[k + 1] - x)
        results[k] = x
    return FreeTrace(
        *(torch.stack(points), z, results, torch.stack(losses), g, metric, (g.square() / metric).sum(1)),
        *(torch.tensor(taus, dtype=torch.float64), torch.tensor(gaps, dtype=torch.float64)),
        optimizer.dropped_batches,
    )


def second_caps(trace: FreeTrace) -> Tensor:
    """Return the second cap of each batch: the sum of the gaps over that of gamma, which grows only with progress."""
    won = read(trace.losses.tolist()).won.tolist()
    ratios = (trace.gaps.cumsum(0) / trace.gamma.cumsum(0)).tolist()
    caps = ratios[:1]
    for i in range(1, len(won)):
        has_progress = won[i] > (i / (i + 1)) ** 0.5 * won[i - 1]
        caps.append(ratios[i] if has_progress else min(ratios[i], caps[-1]))
    return torch.tensor(caps, dtype=torch.float64)


# The bounds


def largest_step_sizes(trace: FreeTrace) -> Tensor:
    """Return ``10 V / mean(gamma) + 0.01`` after each batch, where ``V`` is the range of the losses so far."""
    seen = trace.losses.cummax(0).values - trace.losses.cummin(0).values
    counts = torch.arange(1, len(seen) + 1)
    return (WON + 1.0) * seen * counts / trace.gamma.cumsum(0) + START


def longest_move(bundle_size: int, beta2: float = 0.99) -> float:
    """Return how far a step of size 1 can move a coordinate in Adam's metric."""
    return 1.0 / math.sqrt((1.0 - beta2) * beta2 ** (bundle_size - 2))


def sampled_regret(problem: Problem, trace: FreeTrace) -> Tensor:
    """Return the mean of ``<g_{i+1}, z_i - z*>`` with the weights ``i = 1, ..., k``, for each k."""
    i, total = _weights(trace)
    slopes = (trace.gradients[1:] * (trace.centres[1:-1] - problem.solution)).sum(1)
    return (i * slopes).cumsum(0) / total


def regret_bound(problem: Problem, trace: FreeTrace, box: float) -> Tensor:
    """Return the bound of the regret, and in expectation of ``f(x_k) - f*``, for k = 1, 2, ...; N = 2 and a box."""
    i, total = _weights(trace)
    tau, gamma = trace.taus[1:], trace.gamma[1:]
    q = (i / tau).unsqueeze(1) * trace.metric[1:]
    rises = torch.cat([q[:1], q.diff(dim=0).clamp(min=0.0)]).cumsum(0)
    widths = box + problem.solution.abs()
    return (rises @ widths.square() + (i * tau * gamma).cumsum(0)) / (2.0 * total)


def rate_bound(problem: Problem, trace: FreeTrace, box: float, begin: int) -> Tensor:
    """Return the corollary's bound for k = begin, begin + 1, ..., with the constants measured from ``begin`` on.

    They are ``a <= tau_i sqrt(i) <= A``, the largest ``gamma``, and ``kappa >= tau_i (Q_i - Q_{i-1})``, summed over the
    coordinates with the squares of the box's widths.
    """
    i, total = _weights(trace)
    tau, widths = trace.taus[1:], (box + problem.solution.abs()).square()
    scaled = (tau * (i + 1).sqrt())[begin - 1 :]
    rises = ((i / tau).unsqueeze(1) * trace.metric[1:]).diff(dim=0).clamp(min=0.0) @ widths
    kappa = (tau[:-1] * rises)[begin - 1 :].max()
    before = 2.0 * (regret_bound(problem, trace, box) * total)[begin - 1]
    rate = 2.0 / 3.0 * (kappa / scaled.min() + scaled.max() * trace.gamma.max()) * (i + 1).sqrt() / i
    return (before / (2.0 * total) + rate)[begin - 1 :]


@torch.no_grad()
def gap_of_the_result(problem: Problem, trace: FreeTrace) -> Tensor:
    """Return ``f(x_k) - f*`` for k = 1, 2, ..., without the last."""
    return torch.stack([problem.mean(x) for x in trace.results[:-1]]) - problem.mean(problem.solution)


def _weights(trace: FreeTrace) -> tuple[Tensor, Tensor]:
    """Return the weights of the average and their sums."""
    i = torch.arange(1, len(trace.taus), dtype=torch.float64)
    return i, i.cumsum(0)


# Problems with noise: no point is best for all batches


def medians(dimension: int = 4, batches: int = 7, seed: int = 0) -> Problem:
    """Distances ``sum |w_j - c_j|`` to points: the solution is their median, and each coordinate's slope is 1 or -1."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(batches, dimension, generator=generator, dtype=torch.float64)
    start = torch.full((dimension,), 2.5, dtype=torch.float64)

    def loss(c: Tensor, w: Tensor) -> Tensor:
        return (w - c).abs().sum()

    losses = [partial(loss, c) for c in points]
    return Problem(losses, start, points.median(0).values.unsqueeze(0), lipschitz=math.sqrt(dimension))


def deviations(dimension: int = 4, pairs: int = 20, noise: float = 0.5, seed: int = 0) -> Problem:
    """Absolute deviations ``|<a, w - w*> + e|`` and ``|<a, w - w*> - e|``: symmetric around the solution ``w*``."""
    generator = torch.Generator().manual_seed(seed)
    normals = functional.normalize(torch.randn(pairs, dimension, generator=generator, dtype=torch.float64), dim=1)
    solution = 0.5 * torch.randn(dimension, generator=generator, dtype=torch.float64)
    start = torch.full((dimension,), 2.5, dtype=torch.float64)
    errors = torch.linspace(0.0, noise, pairs, dtype=torch.float64)
    signed = [(a, sign * e) for a, e in zip(normals, errors, strict=True) for sign in (1.0, -1.0)]

    def loss(a: Tensor, e: Tensor, w: Tensor) -> Tensor:
        return (a @ (w - solution) + e).abs()

    losses = [partial(loss, a, e) for a, e in signed]
    return Problem(losses, start, solution.unsqueeze(0), lipschitz=1.0)


# Counter-examples


def noisy_kink(noise: float = 1.0, slope: float = 10.0, start: float = 3.0) -> Problem:
    """``max(w, -slope w)`` with noise in the value alone: two batches, ``noise`` above and below, with one gradient."""

    def loss(shift: float, w: Tensor) -> Tensor:
        return torch.maximum(w, -slope * w).sum() + shift

    losses = [partial(loss, 2.0 * noise), partial(loss, 0.0)]
    return Problem(losses, torch.tensor([start], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))


def skewed(steep: float = 10.0, others: int = 9, start: float = -0.9, box: float = 1.0) -> Problem:
    """One batch with the loss ``steep w`` among ``others`` with ``-w``: linear, and least at ``-box``."""
    slopes = [steep, *[-1.0] * others]

    def loss(slope: float, w: Tensor) -> Tensor:
        return slope * w.sum()

    losses = [partial(loss, slope) for slope in slopes]
    return Problem(losses, torch.tensor([start], dtype=torch.float64), torch.full((1, 1), -box, dtype=torch.float64))


def far_above_zero(offset: float = 1e8) -> Problem:
    """``|w - 1| + offset`` in single precision, which does not see the loss fall if the offset is large."""
    start, solution = torch.zeros(1), torch.ones(1, 1)
    return Problem([lambda w: (w - 1.0).abs().sum() + offset], start, solution, lipschitz=1.0)
