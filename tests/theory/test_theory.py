"""The paper's theorems, checked with the optimizer on problems that meet their assumptions.

These are one batch for all pieces of a bundle, no momentum, and a point at which the loss of every batch is zero. If a
statement is wrong as printed, a counterexample shows it and a corrected statement is tested, see ``docs/theory.md``.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch

import theory_bounds as bounds
import theory_problems as problems
from borat import solve_dual
from borat.constraints import L2Ball
from data_files import real_files
from theory_bounds import gap_of_the_average, gap_of_the_last, run
from theory_problems import Problem

SIZES = [2, 3, 5]
CONVEX = [problems.half_spaces, problems.largest_coordinate, problems.least_squares, problems.ellipsoids]
ALL = [*CONVEX, problems.waves]


def stay_below(measured, bound):
    """Assert that values are below a bound, up to rounding, and somewhere at least 1 % of it."""
    assert (measured <= bound * (1 + 1e-9)).all()
    assert (measured / bound).max() > 0.01


def averages(values):
    return values.cumsum(0) / torch.arange(1, len(values) + 1)


def gradient(loss, w):
    w = w.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(w), w)[0]


def scalar(loss, start, **constants):
    """Return a problem in one dimension with the solution 0."""
    point = torch.tensor([start], dtype=torch.float64)
    return Problem([lambda w: loss(w).sum()], point, torch.zeros(1, 1, dtype=torch.float64), **constants)


def parabola(curvature=1.0, start=1.0):
    constants = dict.fromkeys(("smoothness", "strong_convexity", "secant"), curvature)
    return scalar(lambda w: curvature / 2 * w.square(), start, **constants)


@pytest.fixture(scope="module")
def real():
    folder = real_files("libsvm")
    return cache(lambda name, loss: problems.separable(name, loss, folder, limit=2250))


# The problems have their properties


@pytest.mark.parametrize("make", ALL)
def test_problems_meet_their_assumptions(make):
    """Check each constant at random points, and that interpolation is exact."""
    problem = make()
    check_constants(problem, scale=4.0)
    assert problem.errors.tolist() == [0.0]
    assert problem.squared_distances.item() > 1


@pytest.mark.parametrize("name", ["mushrooms", "w8a"])
def test_real_problems_meet_their_assumptions(real, name):
    hinge, logistic = real(name, "hinge"), real(name, "logistic")
    check_constants(hinge, scale=0.5, points=3)
    check_constants(logistic, scale=0.5, points=3)
    assert hinge.errors.tolist() == [0.0]
    assert logistic.errors[0] > 0.5
    assert 0 < logistic.errors[-1] < 1e-8
    assert len(hinge.losses) * 450 >= 0.9 * 2250 - 450, "most examples are kept"


def check_constants(problem, scale, points=20):
    for loss in problem.losses:
        for _ in range(points):
            u, v = (problem.solution + scale * torch.randn_like(problem.start) for _ in range(2))
            g, h = gradient(loss, u), gradient(loss, v)
            assert loss(u) >= 0
            assert g.norm() <= problem.lipschitz * (1 + 1e-12)
            assert (g - h).norm() <= problem.smoothness * (u - v).norm() * (1 + 1e-9)
            if problem.secant:
                away = u - problem.solution
                assert g @ away >= problem.secant * away.square().sum()
            else:
                below = loss(u) + g @ (v - u) + problem.strong_convexity / 2 * (u - v).square().sum()
                assert loss(v) >= below - 1e-9 * (1 + abs(below))


def test_the_waves_are_not_convex_and_their_secant_constant_is_tight():
    problem = problems.waves(dimension=1, batches=1)
    points = problem.solution + torch.linspace(-6, 6, 2000, dtype=torch.float64).unsqueeze(1)
    slopes = torch.stack([gradient(problem.losses[0], w) for w in points]).squeeze()
    away = (points - problem.solution).squeeze()
    assert (slopes.diff() < 0).any()
    assert (slopes / away).min().item() == pytest.approx(problem.secant, abs=1e-4)
    assert (slopes / away).min() >= problem.secant


# Every step


@pytest.mark.parametrize("make", CONVEX)
@pytest.mark.parametrize("bundle_size", [2, 3, 9])
@pytest.mark.parametrize("lr", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("projected", [False, True])
def test_progress_of_each_step(make, bundle_size, lr, projected):
    """|w' - w*|^2 <= |w - w*|^2 - 2 lr max D, for every convex loss and feasible w*."""
    problem = make()
    ball = L2Ball(max(problem.solution.norm().item(), 1.0) * 1.001) if projected else None
    trace = run(problem, bundle_size, lr, problem.draw(8, 0), ball)
    check_progress(problem, trace, lr)


def check_progress(problem, trace, lr):
    distances = (trace.points - problem.solution).square().sum(1)
    for (old, new), step in zip(pairwise(distances), trace.steps, strict=True):
        assert new <= old - 2 * lr * step.dual_value + 1e-11 * (1 + lr)
        assert step.dual_value >= -1e-14


@pytest.mark.parametrize("name", ["mushrooms", "w8a"])
def test_progress_of_each_step_on_real_data(real, name):
    problem = real(name, "hinge")
    for size, lr in product(SIZES, (0.1, 10.0)):
        check_progress(problem, run(problem, size, lr, problem.draw(15, 0)), lr)


def test_the_progress_is_exact_where_the_losses_are_linear():
    """The inequality cannot be improved: with one linear piece it is an equality."""
    problem = scalar(torch.abs, 7.0, lipschitz=1.0)
    trace = run(problem, 2, 0.5, [0] * 20)
    distances = trace.points.square().sum(1).tolist()
    for (old, new), step in zip(pairwise(distances), trace.steps, strict=True):
        assert new == pytest.approx(old - 2 * 0.5 * step.dual_value, abs=1e-12)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("lr", [10.0, 100.0])
def test_larger_bundles_never_have_a_lower_dual_value(make, lr):
    """The lemma on dual values: from the same point, on the same batch; convexity is not needed."""
    problem = make().whole()
    values = [run(problem, size, lr, [0]).steps[0].dual_value for size in (2, 3, 4, 6, 8, 12)]
    assert all(b >= a - 1e-12 * abs(a) for a, b in pairwise(values))
    assert values[-1] > values[0]


def test_a_better_guarantee_is_not_a_better_step():
    """With a small lr BORAT3, whose dual value is higher, ends an update further from the solution than ALI-G."""
    problem = problems.least_squares(dimension=4, batches=1, rows=3, seed=10)
    for lr, borat_is_closer in ((0.2, False), (20.0, True)):
        alig, borat = (run(problem, size, lr, [0]) for size in (2, 3))
        assert borat.steps[0].dual_value > alig.steps[0].dual_value
        distances = [(trace.points[-1] - problem.solution).norm().item() for trace in (alig, borat)]
        assert (distances[1] < 0.99 * distances[0]) == borat_is_closer
        assert (distances[1] > 1.2 * distances[0]) != borat_is_closer


# Small steps on smooth losses


def test_small_steps_take_three_kinds_only():
    """For lr <= 1 / (2 beta) the ALIG, EALIG, MAX3 and ZERO subproblems are never the solution, convex or not."""
    problem = problems.waves(dimension=3)
    kinds = set()
    for share in (0.05, 0.3, 1.0):
        for _ in range(30):
            moved = replace(problem, start=problem.solution + 4 * torch.randn_like(problem.start))
            kinds |= {step.kind for step in run(moved, 3, share / (2 * problem.smoothness), problem.draw(5, 0)).steps}
    assert kinds == {"SGD", "ESGD", "MAX2"}


@pytest.mark.parametrize("share", [0.05, 0.3, 0.999])
@pytest.mark.parametrize("make", [problems.least_squares, problems.ellipsoids])
def test_small_steps_on_convex_losses_are_extragradient_steps(make, share):
    problem = make()
    steps = run(problem, 3, share / (2 * problem.smoothness), problem.draw(60, 0)).steps
    assert {step.kind for step in steps} == {"ESGD"}


def test_small_steps_on_real_data(real):
    problem = real("mushrooms", "logistic")
    steps = run(problem, 3, 0.999 / (2 * problem.smoothness), problem.draw(40, 0)).steps
    assert {step.kind for step in steps} == {"ESGD"}


@pytest.mark.parametrize("make", [problems.least_squares, problems.waves])
def test_large_steps_take_others_too(make):
    problem = make()
    kinds = {step.kind for step in run(problem, 3, 20 / problem.smoothness, problem.draw(40, 0)).steps}
    assert kinds - {"SGD", "ESGD", "MAX2"}


# Convex and Lipschitz


@pytest.mark.parametrize("make", [problems.half_spaces, problems.largest_coordinate])
@pytest.mark.parametrize("bundle_size", SIZES)
@pytest.mark.parametrize("lr", [0.1, 1.0, 1e4])
def test_convex_and_lipschitz(make, bundle_size, lr):
    """The objective at the average on the whole problem, and the mean of the sampled losses in every run."""
    problem = make()
    check_average(problem, bundle_size, lr, bounds.lipschitz_bound, 50)


def check_average(problem, bundle_size, lr, bound, updates):
    limits = bound(problem, lr, updates)
    whole = problem.whole()
    stay_below(gap_of_the_average(whole, run(whole, bundle_size, lr, [0] * updates)), limits)
    stay_below(averages(run(problem, bundle_size, lr, problem.draw(updates, 1)).losses), limits)


def test_the_lipschitz_bound_is_attained():
    """ALI-G attains it after one update per coordinate; N pieces set N - 1 coordinates to zero in an update."""
    problem = problems.largest_coordinate(dimension=48)
    traces = {size: run(problem, size, 1e9, [0] * 48) for size in (2, 3, 4, 5)}
    bound = bounds.lipschitz_bound(problem, 1e9, 48)
    assert gap_of_the_average(problem, traces[2])[-1] == pytest.approx(bound[-1].item(), rel=1e-6)
    for size, trace in traces.items():
        zeros = (trace.points.abs() < 1e-6).sum(1)
        assert zeros.tolist() == [min((size - 1) * t, 48) for t in range(49)]


@pytest.mark.parametrize("bundle_size", SIZES)
@pytest.mark.parametrize(("name", "lr"), [("mushrooms", 0.1), ("mushrooms", 100.0), ("w8a", 100.0)])
def test_convex_and_lipschitz_on_real_data(real, name, bundle_size, lr):
    check_average(real(name, "hinge"), bundle_size, lr, bounds.lipschitz_bound, 30)


def test_the_lipschitz_bound_holds_for_the_logistic_loss(real):
    check_average(real("mushrooms", "logistic"), 3, 1.0, bounds.lipschitz_bound, 30)


def test_the_printed_rates_lack_an_expectation():
    """The theorems on averages are false for a single sequence of batches, here one without the second batch."""
    start, solution = torch.ones(2, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    rough = Problem([lambda w: w[0].abs(), lambda w: w[1].abs()], start, solution, lipschitz=1.0)
    smooth = Problem([lambda w: w[0] ** 2 / 2, lambda w: w[1] ** 2 / 2], start, solution, smoothness=1.0)
    for problem, bound in ((rough, bounds.lipschitz_bound), (smooth, bounds.smooth_bound)):
        gaps = gap_of_the_average(problem, run(problem, 3, 10.0, [0] * 100))
        assert gaps[-1] > 2 * bound(problem, 10.0, 100)[-1]


@pytest.mark.parametrize("bundle_size", [2, 3])
@pytest.mark.parametrize(
    ("problem", "bound"),
    [
        (problems.half_spaces(dimension=2, batches=2, seed=2), bounds.lipschitz_bound),
        (problems.least_squares(dimension=2, batches=2, rows=1), bounds.smooth_bound),
    ],
)
@pytest.mark.parametrize("lr", [0.05, 5.0])
def test_the_rates_hold_in_expectation(problem, bound, bundle_size, lr):
    """The exact expectation: over all sequences of five batches."""
    orders = list(product(range(2), repeat=5))
    gaps = [gap_of_the_average(problem, run(problem, bundle_size, lr, order)) for order in orders]
    stay_below(torch.stack(gaps).mean(0), bound(problem, lr, 5))


# Convex and smooth


@pytest.mark.parametrize("bundle_size", SIZES)
@pytest.mark.parametrize("share", [0.1, 1.0, 20.0])
def test_convex_and_smooth(bundle_size, share):
    """Small and large lr: share is lr over the border 1 / (2 beta)."""
    problem = problems.least_squares()
    check_average(problem, bundle_size, share / (2 * problem.smoothness), bounds.smooth_bound, 50)


@pytest.mark.parametrize("bundle_size", SIZES)
@pytest.mark.parametrize(("name", "share"), [("mushrooms", 0.2), ("mushrooms", 20.0), ("w8a", 1.0)])
def test_convex_and_smooth_on_real_data(real, name, share, bundle_size):
    problem = real(name, "logistic")
    check_average(problem, bundle_size, share / (2 * problem.smoothness), bounds.smooth_bound, 30)


def test_the_printed_rate_for_small_eta_is_that_for_large_eta():
    """Printed: 2 beta D^2 / (T+1) for every lr <= 1 / (2 beta). A tiny lr hardly moves."""
    problem, lr = parabola(), 0.01
    gaps = gap_of_the_average(problem, run(problem, 3, lr, [0] * 10))
    printed = 2 * problem.smoothness * problem.squared_distances[0] / torch.arange(1, 11)
    assert gaps[-1] > 2 * printed[-1]
    stay_below(gaps, bounds.smooth_bound(problem, lr, 10))
    assert bounds.smooth_bound(problem, lr, 10)[-1].item() == pytest.approx(1 / (lr * 10))


# Linear rates, which hold in every run


@pytest.mark.parametrize("bundle_size", SIZES)
@pytest.mark.parametrize("share", [0.1, 1.0, 20.0])
def test_strongly_convex(bundle_size, share):
    problem = problems.ellipsoids()
    lr = share / (2 * problem.smoothness)
    gaps = gap_of_the_last(problem, run(problem, bundle_size, lr, problem.draw(80, 0)))
    stay_below(gaps, bounds.strongly_convex_bound(problem, lr, 80))
    assert gaps[-1] < 0.5 * gaps[0]


@pytest.mark.parametrize("share", [0.2, 1.0])
@pytest.mark.parametrize("height", [1.5, 3.0])
def test_restricted_secant_inequality(height, share):
    problem = problems.waves(height=height)
    lr = share * bounds.largest_secant_lr(problem)
    gaps = gap_of_the_last(problem, run(problem, 3, lr, problem.draw(150, 0)))
    stay_below(gaps, bounds.secant_bound(problem, lr, 150))
    assert gaps[-1] < 0.9 * gaps[0]


def test_each_kind_of_step_contracts():
    """By 1 - lr mu for lr up to mu / beta^2, also for MAX2, for which the paper shows 1 - 3/8 lr mu."""
    problem = problems.waves(dimension=3)
    lr = min(1 / (4 * problem.smoothness), problem.secant / problem.smoothness**2)
    assert lr > bounds.largest_secant_lr(problem)
    kinds = set()
    for _ in range(60):
        moved = replace(problem, start=problem.solution + 4 * torch.randn_like(problem.start))
        trace = run(moved, 3, lr, problem.draw(5, 0))
        distances = (trace.points - problem.solution).square().sum(1)
        assert (distances[1:] <= (1 - lr * problem.secant) * distances[:-1]).all()
        kinds |= {step.kind for step in trace.steps}
    assert kinds == {"SGD", "ESGD", "MAX2"}


def test_the_printed_secant_inequality_promises_nothing():
    """1 - cos(w) satisfies <g, w> <= |w|, but w = pi is stationary, and the optimizer stays there."""
    problem = scalar(lambda w: 1 - w.cos(), math.pi, smoothness=1.0, secant=1.0)
    for w in torch.linspace(-9, 9, 500, dtype=torch.float64).unsqueeze(1):
        assert gradient(problem.losses[0], w) @ w <= w.norm()
    lr = bounds.largest_secant_lr(problem)
    gaps = gap_of_the_last(problem, run(problem, 3, lr, [0] * 60))
    assert gaps[-1].item() == pytest.approx(2.0)
    assert gaps[-1] > 10 * math.exp(-3 / 8 * lr * 59) * math.pi**2


def test_the_printed_secant_rate_lacks_half_beta():
    """Printed: f(w_{T+1}) <= exp(...) |w_0 - w*|^2. Only the left side has the unit of the loss."""
    problem = parabola(curvature=100.0)
    lr = bounds.largest_secant_lr(problem)
    gaps = gap_of_the_last(problem, run(problem, 3, lr, [0] * 20))
    assert gaps[0] > 30 * problem.squared_distances[0]
    stay_below(gaps, bounds.secant_bound(problem, lr, 20))


def test_the_printed_secant_rate_is_that_of_the_largest_lr():
    """Printed: the rate contains the largest allowed lr instead of the lr of the run."""
    problem = parabola()
    largest = bounds.largest_secant_lr(problem)
    gaps = gap_of_the_last(problem, run(problem, 3, largest / 100, [0] * 60))
    assert gaps[-1] > 50 * bounds.secant_bound(problem, largest, 60)[-1]
    stay_below(gaps, bounds.secant_bound(problem, largest / 100, 60))


# The example, the dual, the page


def test_the_example_that_is_not_convex():
    """w^2 - |w|^3: ALI-G oscillates between 3/5 and -3/5 for lr >= 10; BORAT3 is at the optimum after one update."""
    cubic = lambda w: w.square() - w.abs() ** 3  # noqa: E731
    for lr in (10.0, 1e3):
        alig = run(scalar(cubic, 0.6), 2, lr, [0] * 4).points
        assert alig.squeeze().tolist() == pytest.approx([0.6, -0.6, 0.6, -0.6, 0.6], abs=1e-6)
        assert abs(run(scalar(cubic, 0.6), 3, lr, [0]).points[-1].item()) < 1e-12
    for lr in (0.5, 5.0, 9.0):
        assert abs(run(scalar(cubic, 0.6), 2, lr, [0] * 60).points[-1].item()) < 1e-12


def test_the_example_converges_for_all_lr_from_its_own_start_only():
    """The caption does not mention the start. From 0.66, a large lr leaves the region with both bundles."""
    cubic = lambda w: w.square() - w.abs() ** 3  # noqa: E731
    for size in (2, 3):
        with pytest.warns(UserWarning, match="below lower_bound"):
            points = run(scalar(cubic, 0.66), size, 1e3, [0] * 5).points
        assert points[-1].item() < -10


def test_the_candidates_are_not_all_solutions():
    """Proposition 2 prints an equality of sets, but with equal gradients every mixture is a solution."""
    Q, b = torch.ones(2, 2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    solution = solve_dual(Q, b)
    mixture = torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert len(solution.support) == 1
    assert solution.value == pytest.approx((mixture @ b - mixture @ Q @ mixture / 2).item())


def test_bad_arguments_are_explained(tmp_path):
    with pytest.raises(ValueError, match="loss must be 'hinge' or 'logistic', got 'square'"):
        problems.separable("mushrooms", "square", tmp_path)
    with pytest.raises(ValueError, match="two classes, such as mushrooms or w8a, got 'digits'"):
        problems.separable("digits", "hinge", tmp_path)


def test_the_page_names_tests_that_exist():
    page = (Path(__file__).parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`(test_\w+)`", page))
    assert len(names) > 15
    for name in names:
        assert name in globals(), name
