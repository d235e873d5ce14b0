"""Statements of ``docs/theory.md`` on FreeBORAT's measured gap, checked with the optimizer."""

from __future__ import annotations

import random
import re
from itertools import product
from pathlib import Path

import pytest
import torch

import theory_problems as problems
from borat._numbers.ops import host_ops
from borat._numbers.rolling import START, WAY, measure_gap, new_rolling
from gap import (
    deviations,
    far_above_zero,
    gap_of_the_result,
    largest_step_sizes,
    longest_move,
    medians,
    noisy_kink,
    rate_bound,
    read,
    regret_bound,
    run_free,
    sampled_regret,
    second_caps,
    skewed,
)

BOX = 3.0
NOISY = {
    "medians": medians(),
    "one median": medians(batches=1),
    "deviations": deviations(),
    "deviations, one batch": deviations().whole(),
    "two batches": deviations(dimension=1, pairs=1, noise=0.3),
}


def count(start, stop):
    return torch.arange(start, stop + 1, dtype=torch.float64)


# The reading


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.75, 0.9])
@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_the_reading_of_a_power_law(p, beta):
    """r - m is at most p / (1 - p) times the remaining loss, and less by terms that vanish."""
    k = count(1, 5000)
    left = 7.0 * k**-p
    readings = read((left - 3.0).tolist(), beta)
    share = ((readings.average - readings.mean) / left)[2:]
    k = k[2:]
    most = p / (1 - p)
    assert (share <= most * (1 + 1e-9)).all()
    assert (share >= most - 2 * k ** (p - 1) / (1 - p) - 2 * beta / ((1 - beta) ** 2 * k)).all()
    won = (readings.won / left)[2:]
    if p <= 0.5:
        assert (won <= most * (1 + 1e-9)).all()
        assert (won >= share.clamp(min=0.0)).all()
    else:
        assert won[-1] > 1.5 * won[len(won) // 10], "forgotten more slowly than the loss falls"


def test_what_was_won_is_a_maximum():
    """sqrt(k) w_k is the largest sqrt(i) (r_i - m_i) so far, and w is at most the range of the losses."""
    rng = random.Random(0)
    losses = [rng.gauss(0.0, 1.0) + 5.0 / k for k in range(1, 500)]
    readings, k = read(losses), count(1, 499)
    largest = (k.sqrt() * (readings.average - readings.mean)).clamp(min=0.0).cummax(0).values
    torch.testing.assert_close(readings.won, largest / k.sqrt())
    seen = torch.tensor(losses, dtype=torch.float64)
    assert (readings.won <= seen.cummax(0).values - seen.cummin(0).values).all()


def test_nothing_won_fades_like_a_root():
    losses = [*torch.linspace(5.0, 1.0, 50).tolist(), *[6.0] * 450]
    won = read(losses).won[59:]
    torch.testing.assert_close(won, won[0] * (60 / count(60, 500)).sqrt())


@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_noise_alone_is_read_as_won(beta):
    """For losses drawn from {-1, 1}, w tends to 1 instead of 0, and sooner with a shorter running mean."""
    rng = random.Random(0)
    won = read([1.0, -1.0, *(rng.choice((-1.0, 1.0)) for _ in range(20_000))], beta).won
    assert won[1000:].min() > (0.85 if beta == 0.5 else 0.45)
    assert won[1000:].max() < 1.1


# The step sizes


@pytest.mark.parametrize("bundle_size", [2, 3, 5])
@pytest.mark.parametrize("make", [medians, deviations, problems.least_squares, problems.waves])
def test_steps_do_not_run_away(make, bundle_size):
    """For every bundle, convex or not: tau <= 10 V / mean(gamma) + 0.01, and a coordinate moves by A tau at most."""
    problem = make()
    trace = run_free(problem, bundle_size, problem.draw(150, 0))
    assert trace.dropped == 0
    assert (trace.taus <= largest_step_sizes(trace)).all()
    assert (trace.taus / largest_step_sizes(trace)).max() > 0.01
    moves = trace.centres.diff(dim=0).abs().amax(1)
    assert (moves <= longest_move(bundle_size) * trace.taus * (1 + 1e-6)).all()


def test_the_step_of_two_pieces():
    """tau = min((1 - beta^k) h / (2 gamma), c) with the second cap c, and the result is the average of the centres."""
    problem = deviations()
    trace = run_free(problem, 2, problem.draw(300, 0), BOX)
    polyak = 0.5 * (1 - 0.9 ** count(1, 300)) * trace.gaps / trace.gamma
    torch.testing.assert_close(trace.taus, torch.minimum(polyak, second_caps(trace)))
    torch.testing.assert_close(trace.points[1:], 0.1 * trace.centres[1:-1] + 0.9 * trace.results[:-1])


# The gap of the average


@pytest.mark.parametrize("problem", NOISY.values(), ids=NOISY.keys())
def test_the_regret_is_bounded_in_every_run(problem):
    for seed in range(2):
        trace = run_free(problem, 2, problem.draw(1000, seed), BOX)
        assert trace.dropped == 0
        regret, bound = sampled_regret(problem, trace), regret_bound(problem, trace, BOX)
        assert (regret <= bound * (1 + 1e-9)).all()
        assert (regret / bound).max() > 0.1
        if len(problem.losses) == 1:
            assert (gap_of_the_result(problem, trace) <= regret * (1 + 1e-9) + 1e-12).all()


def test_the_gap_is_bounded_in_expectation():
    """The exact expectation over all sequences of eight batches of two: f(x) - f* <= E regret <= E bound."""
    problem = deviations(dimension=1, pairs=1, noise=0.3)
    traces = [run_free(problem, 2, order, BOX) for order in product(range(2), repeat=8)]
    gap = torch.stack([gap_of_the_result(problem, trace) for trace in traces]).mean(0)
    regret = torch.stack([sampled_regret(problem, trace) for trace in traces]).mean(0)
    bound = torch.stack([regret_bound(problem, trace, BOX) for trace in traces]).mean(0)
    assert (gap <= regret * (1 + 1e-9)).all()
    assert (regret <= bound).all()
    assert (gap / regret).max() > 0.5


@pytest.mark.parametrize("name", ["one median", "two batches"])
def test_the_rate_of_a_root(name):
    """Slopes of one size: tau sqrt(k) stays between two numbers, and the bound falls like 1 / sqrt(k)."""
    problem = NOISY[name]
    trace = run_free(problem, 2, problem.draw(1500, 0), BOX)
    scaled = (trace.taus * count(1, 1500).sqrt())[100:]
    assert scaled.max() < 1.2 * scaled.min()
    measured, bound = regret_bound(problem, trace, BOX)[99:], rate_bound(problem, trace, BOX, 100)
    assert (measured <= bound * (1 + 1e-9)).all()
    assert (measured / bound).max() > 0.9
    assert (gap_of_the_result(problem, trace)[99:] <= bound).all()
    assert bound[-1] < 0.2 * bound[0]


# Counter-examples


def test_noise_in_the_loss_keeps_a_gap():
    """The same gradients: the gap falls like 1 / sqrt(k) without noise, and stays with noise in the losses."""
    problem = noisy_kink()
    orders = problem.draw(5000, 0), [1] * 5000
    results = [run_free(problem, 2, order).results.flatten()[[1999, -1]] for order in orders]
    noisy, quiet = (torch.maximum(x, -10 * x).tolist() for x in results)
    assert quiet[1] < quiet[0] / 1.5
    assert noisy[1] > noisy[0] / 2
    assert noisy[1] > 3 * quiet[1]


@pytest.mark.parametrize("bundle_size", [2, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_skewed_gradients_lead_the_wrong_way(bundle_size, seed):
    """Linear losses on [-1, 1], least at -1: from -0.9 the average goes to the other side."""
    problem = skewed()
    assert torch.autograd.grad(problem.mean(start := problem.start.requires_grad_()), start)[0] > 0.09
    problem.start.requires_grad_(False)
    trace = run_free(problem, bundle_size, problem.draw(3000, seed), 1.0)
    assert trace.dropped == 0
    assert trace.results[-1] > (0.95 if bundle_size == 2 else 0.15)


@pytest.mark.parametrize("bundle_size", [2, 3])
def test_a_fall_that_rounding_hides_stops_the_run(bundle_size):
    """The fading start alone goes START / 2 sum (1 - 0.9^k) 0.97^k = 0.127 at most. Without the offset it arrives."""
    fade = 1 - START / WAY
    way = START / 2 * (fade / (1 - fade) - 0.9 * fade / (1 - 0.9 * fade))
    hidden = run_free(far_above_zero(), bundle_size, [0] * 500).results
    assert hidden[-1].item() == pytest.approx(way, rel=0.02)
    assert run_free(far_above_zero(0.0), bundle_size, [0] * 500).results[-1].item() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("size", [1.0, 1e6, 1e8])
def test_the_steps_of_the_start_have_a_bounded_sum(size):
    """Without progress, the gap is the start's alone. ``size`` is the squared norm of ``g / D``."""
    ops, state, way = host_ops(1), new_rolling(2), 0.0
    for k in range(1, 100 + int(10 * size**0.5)):
        state, gap, _ = measure_gap(ops, state, 1.0, 0.0, 2.0, size, 0.9)
        state = state._replace(batches=k)
        way += gap / 2.0
        assert gap / 2.0 <= min(START, size**-0.5)
        assert way < WAY
    assert way > 0.9 * WAY


@pytest.mark.parametrize("distance", [1e3, 1e6])
def test_a_small_start_does_not_stop_the_run(distance):
    """As long as a fall can be measured, steps grow with it: a solution 10^8 first steps away is reached."""
    problem = problems.Problem(
        [lambda w: (w - distance).abs().sum()], torch.zeros(1).double(), torch.tensor([[distance]]).double()
    )
    assert gap_of_the_result(problem, run_free(problem, 2, [0] * 1000))[-1] < 0.1 * distance


def test_the_page_names_these_tests():
    page = (Path(__file__).parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`test_gap\.py::(test_\w+)`", page))
    assert names == {name for name in globals() if name.startswith("test_")} - {"test_the_page_names_these_tests"}
