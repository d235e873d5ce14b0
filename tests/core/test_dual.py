"""The dual is solved exactly, whatever the problem."""

from __future__ import annotations

import os

import numpy as np
import pytest
import quadprog
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from borat import DualSolution, kernels, solve_dual
from borat.dual import IncrementalDual
from borat.dual_compiled import CompiledDual
from borat.dual_numpy import ENUMERATION_LIMIT, NumpyDual, _ascend, _best_vertex, _enumerate
from duals import assert_maximal, degenerate, extreme, relative_gap, value
from reference import enumerate_dual

COMPILED = pytest.param(
    CompiledDual, id="compiled", marks=pytest.mark.skipif(not kernels.are_there(), reason="there was no C compiler")
)


@pytest.fixture(params=[COMPILED, pytest.param(NumpyDual, id="numpy")], scope="module", autouse=True)
def _solver(request):
    """All tests hold for both implementations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("borat.dual.SOLVER", request.param)
        yield


def assert_solved(Q, b, solution: DualSolution):
    alpha = np.asarray(solution.alpha)
    assert_maximal(Q, b, alpha)
    assert solution.support == tuple(np.flatnonzero(alpha))
    assert solution.value == pytest.approx(value(Q, b, alpha), rel=1e-12, abs=1e-13 * np.abs(Q).max())


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32])
def test_duality_gap_of_degenerate_problems(n):
    rng = np.random.default_rng(n)
    for _ in range(150):
        Q, b = degenerate(rng, n)
        assert_solved(Q, b, solve_dual(Q, b))


@pytest.mark.parametrize("n", range(1, 7))
def test_equals_the_literal_enumeration(n):
    rng = np.random.default_rng(n)
    for _ in range(60):
        A = rng.standard_normal((n, n + 2))
        A[-1] = 0.0
        Q, b = A @ A.T, rng.standard_normal(n)
        alpha, best = enumerate_dual(Q, b)
        solution = solve_dual(Q, b)
        np.testing.assert_allclose(solution.alpha, alpha, atol=1e-10)
        assert solution.value == pytest.approx(best, rel=1e-12, abs=1e-12)


def test_equals_quadprog():
    rng = np.random.default_rng(0)
    for n in (2, 3, 5, 8, 12, 20, 32):
        A = rng.standard_normal((n, 2 * n))
        Q, b = A @ A.T, 5 * rng.standard_normal(n)
        constraints = np.hstack((np.ones((n, 1)), np.eye(n)))
        expected = quadprog.solve_qp(Q, b, constraints, np.eye(n + 1)[0], 1)[0]
        np.testing.assert_allclose(solve_dual(Q, b).alpha, expected, atol=1e-9)


@pytest.mark.parametrize("n", range(2, ENUMERATION_LIMIT + 1))
def test_enumeration_and_active_set_agree(n):
    rng = np.random.default_rng(n)
    for _ in range(100):
        Q, b = degenerate(rng, n)
        size = max(np.abs(Q).max(), np.abs(b).max())
        enumerated, ascended = _ascend(Q, b, _enumerate(Q, b)), _ascend(Q, b, _best_vertex(Q, b))
        assert value(Q, b, enumerated) == pytest.approx(value(Q, b, ascended), rel=1e-12, abs=1e-12 * size)
        assert max(relative_gap(Q, b, enumerated), relative_gap(Q, b, ascended)) <= 1e-12


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 9, 16])
def test_piece_by_piece_is_as_good_as_at_once(n):
    rng = np.random.default_rng(n)
    for _ in range(30):
        Q, b = degenerate(rng, n)
        dual = IncrementalDual(n)
        for k in range(n):
            alpha, pieces = dual.add(Q[k, : k + 1], b[k]), slice(k + 1)
            support = tuple(np.flatnonzero(alpha))
            assert_solved(Q[pieces, pieces], b[pieces], DualSolution(alpha, dual.value, support))


@pytest.mark.parametrize("n", [9, 10, 12, 16, 32])
@pytest.mark.filterwarnings("error")
def test_piece_by_piece_with_the_bound_first_at_every_scale(n):
    """As the optimizer does, with zero and duplicate gradients, down to losses of 1e-14."""
    rng = np.random.default_rng(n)
    for _ in range(60):
        Q, b = degenerate(rng, n)
        Q[0] = Q[:, 0] = b[0] = 0.0
        other, scale = rng.integers(1, n), 10.0 ** rng.uniform(-14, 3)
        if rng.random() < 0.5:
            Q[other] = Q[:, other] = 0.0
        if rng.random() < 0.2:
            b[:] = 0.0
        Q, b = Q * scale, b * scale
        dual = IncrementalDual(n)
        for k in range(n):
            alpha = dual.add(Q[k, : k + 1], b[k])
            assert relative_gap(Q[: k + 1, : k + 1], b[: k + 1], alpha) <= 1e-12


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-8, 1e-10, 1e-14])
@pytest.mark.parametrize("capacity", [8, 9])
def test_a_zero_gradient_does_not_stall_the_ascent(scale, capacity):
    dual = IncrementalDual(capacity)
    dual.add(np.zeros(1), 0.0)
    dual.add(np.zeros(2), 1e-10 * scale)
    alpha = dual.add(scale * np.array([0.0, 0.0, 2.0]), 0.5 * scale)
    np.testing.assert_allclose(alpha, [0.0, 0.75, 0.25], atol=1e-9)


def test_fuzzed():
    """All kinds of problems, at once and piece by piece. For many of them: BORAT_FUZZ=100000 pytest -k fuzzed."""
    rng = np.random.default_rng(0)
    for _ in range(int(os.environ.get("BORAT_FUZZ", "1000"))):
        n = int(rng.integers(1, 33 if rng.random() < 0.3 else 11))
        Q, b = extreme(rng, n)
        assert_maximal(Q, b, solve_dual(Q, b).alpha)
        dual = IncrementalDual(n)
        for k in range(n):
            alpha = dual.add(Q[k, : k + 1], b[k])
        assert_maximal(Q, b, alpha)


@pytest.mark.parametrize("n", [2, 5, 9, 32])
def test_the_same_pieces_give_the_same_bits(n):
    rng = np.random.default_rng(n)
    for _ in range(20):
        Q, b = extreme(rng, n)
        one, two = IncrementalDual(n), IncrementalDual(n)
        first = [one.add(Q[k, : k + 1], b[k]) for k in range(n)]
        again = [two.add(Q[k, : k + 1], b[k]) for k in range(n)]
        assert all(map(np.array_equal, first, again))


def test_a_problem_that_grows_out_of_its_scale():
    """Tiny pieces first, then large ones, then tiny ones again."""
    A = np.diag([0.0, 1e-150, 3e140, 1e-150])
    b = np.array([0.0, 1e-300, 1e280, 2e-300])
    dual = IncrementalDual(4)
    for k in range(4):
        alpha, pieces = dual.add((A @ A.T)[k, : k + 1], b[k]), slice(k + 1)
        assert_maximal((A @ A.T)[pieces, pieces], b[pieces], alpha)


def test_more_pieces_never_lower_the_value():
    rng = np.random.default_rng(0)
    for _ in range(50):
        Q, b = degenerate(rng, 8)
        dual, values = IncrementalDual(8), []
        for k in range(8):
            dual.add(Q[k, : k + 1], b[k])
            values.append(dual.value)
        assert (np.diff(values) >= -1e-12 * max(np.abs(Q).max(), np.abs(b).max())).all()


numbers = st.floats(-10, 10, allow_nan=False, width=32)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), n=st.integers(1, 10), d=st.integers(1, 6))
def test_any_small_problem(data, n, d):
    A = np.array(data.draw(st.lists(st.lists(numbers, min_size=d, max_size=d), min_size=n, max_size=n)))
    b = np.array(data.draw(st.lists(numbers, min_size=n, max_size=n)))
    assert_solved(A @ A.T, b, solve_dual(A @ A.T, b))


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), exponent=st.integers(-300, 300), n=st.integers(2, 12))
def test_scaling_by_a_power_of_two_changes_no_bit(seed, exponent, n):
    Q, b = degenerate(np.random.default_rng(seed), n)
    Q, b = Q / max(np.abs(Q).max(), 1e-300), b / max(np.abs(b).max(), 1e-300)
    scaled = solve_dual(np.ldexp(Q, exponent), np.ldexp(b, exponent))
    np.testing.assert_array_equal(scaled.alpha, solve_dual(Q, b).alpha)


@pytest.mark.parametrize("scale", [1e-14, 1e-7, 1.0, 1e7, 1e14])
def test_scaling_the_problem_scales_the_value(scale):
    rng = np.random.default_rng(0)
    A = rng.standard_normal((6, 9))
    Q, b = A @ A.T, rng.standard_normal(6)
    one, scaled = solve_dual(Q, b), solve_dual(scale * Q, scale * b)
    np.testing.assert_allclose(scaled.alpha, one.alpha, atol=1e-12)
    assert scaled.value == pytest.approx(scale * one.value, rel=1e-12)


def test_slightly_indefinite_matrix():
    rng = np.random.default_rng(0)
    for n in (3, 5, 9, 20):
        for _ in range(50):
            A = rng.standard_normal((n, 3)).astype(np.float32)
            Q = (A @ A.T).astype(np.float64)  # rounded to float32: rank 3 up to negative eigenvalues of about 1e-7
            b = rng.standard_normal(n)
            alpha = solve_dual(Q, b).alpha
            assert (alpha >= 0.0).all()
            assert abs(alpha.sum() - 1.0) <= 1e-12
            assert relative_gap(Q, b, alpha) <= 1e-6


def test_tiny_weights_keep_their_digits():
    """The Polyak step of a gradient that is a million times too long: alpha = 1 / |g|^2."""
    solution = solve_dual([[1e12, 0.0], [0.0, 0.0]], [1.0, 0.0])
    assert solution.alpha[0] == pytest.approx(1e-12, rel=1e-12)


def test_a_full_problem_takes_no_piece():
    dual = IncrementalDual(1)
    dual.add(np.zeros(1), 0.0)
    with pytest.raises((ValueError, IndexError)):
        dual.add(np.zeros(2), 0.0)


# The seven subproblems of the paper's table for N = 3, with gradients g, g' and offsets b1, b2 above a bound of 0

CLOSED_FORMS = {
    "SGD": lambda gg, gh, hh, b1, b2: (1.0, 0.0),
    "ESGD": lambda gg, gh, hh, b1, b2: (0.0, 1.0),
    "ZERO": lambda gg, gh, hh, b1, b2: (0.0, 0.0),
    "EALIG": lambda gg, gh, hh, b1, b2: (0.0, b2 / hh),
    "ALIG": lambda gg, gh, hh, b1, b2: (b1 / gg, 0.0),
    # With offsets b1, b2 (the paper's row has the losses, at gamma = 1, where b2 = loss' + <g, g'>):
    "MAX2": lambda gg, gh, hh, b1, b2: (
        (hh - gh + b1 - b2) / (gg - 2 * gh + hh),
        (gg - gh + b2 - b1) / (gg - 2 * gh + hh),
    ),
    "MAX3": lambda gg, gh, hh, b1, b2: (
        (b1 * hh - b2 * gh) / (gg * hh - gh**2),
        (b2 * gg - b1 * gh) / (gg * hh - gh**2),
    ),
}
SUPPORTS = {(0,): "SGD", (1,): "ESGD", (2,): "ZERO", (1, 2): "EALIG", (0, 2): "ALIG", (0, 1): "MAX2", (0, 1, 2): "MAX3"}


def test_closed_forms_of_the_seven_subproblems():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(2000):
        g, h = rng.standard_normal((2, 3)) * rng.uniform(0.2, 2.0)
        b1, b2 = rng.uniform(-1, 3, 2)
        gg, gh, hh = g @ g, g @ h, h @ h
        solution = solve_dual([[gg, gh, 0], [gh, hh, 0], [0, 0, 0]], [b1, b2, 0.0])
        kind = SUPPORTS[solution.support]
        seen.add(kind)
        np.testing.assert_allclose(solution.alpha[:2], CLOSED_FORMS[kind](gg, gh, hh, b1, b2), atol=1e-9)
    assert seen == set(CLOSED_FORMS)


def test_the_papers_max2_row_is_in_terms_of_the_losses():
    """alpha_1 = (hh - 2 gh + loss - loss') / |g - h|^2, with b2 = loss' + gamma * gh and gamma = 1."""
    gg, gh, hh, loss, loss_2 = 1.0, 0.2, 1.2, 2.0, 1.9
    solution = solve_dual([[gg, gh, 0], [gh, hh, 0], [0, 0, 0]], [loss, loss_2 + gh, 0.0])
    assert solution.support == (0, 1)
    distance = gg - 2 * gh + hh
    assert solution.alpha[0] == pytest.approx((hh - 2 * gh + loss - loss_2) / distance, rel=1e-12)
    assert solution.alpha[1] == pytest.approx((gg + loss_2 - loss) / distance, rel=1e-12)


def test_a_bound_below_zero_is_not_taken_for_zero():
    """Algorithm 1 starts at d_max = 0, which is right for a bound of 0 only."""
    solution = solve_dual([[1.0, 0.0], [0.0, 0.0]], [-5.0, -7.0])
    assert solution.support == (0,)
    assert solution.value == -5.5


def test_duplicate_gradients_are_no_error():
    solution = solve_dual(np.ones((4, 4)), np.zeros(4))
    assert_solved(np.ones((4, 4)), np.zeros(4), solution)


def test_a_single_piece():
    assert solve_dual([[3.0]], [2.0]) == DualSolution(np.ones(1), 0.5, (0,))


# Input and output


def test_torch_in_torch_out():
    solution = solve_dual(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([1.0, 0.0]))
    assert solution.alpha.dtype == torch.float64
    torch.testing.assert_close(solution.alpha, torch.tensor([0.5, 0.5], dtype=torch.float64))


def test_the_input_is_not_changed():
    Q, b = np.eye(3), np.arange(3.0)
    solve_dual(Q, b)
    np.testing.assert_array_equal(Q, np.eye(3))
    np.testing.assert_array_equal(b, np.arange(3.0))


@pytest.mark.parametrize(
    ("Q", "b", "message"),
    [
        (np.ones((2, 3)), np.ones(2), r"Q must be a square matrix, got shape \(2, 3\)"),
        (np.ones(4), np.ones(2), r"Q must be a square matrix, got shape \(4,\)"),
        (np.eye(2), np.ones((2, 1)), r"b must be a vector, got shape \(2, 1\)"),
        (np.eye(2), np.ones(3), r"must agree in size, got Q of shape \(2, 2\) and b of shape \(3,\)"),
        (np.zeros((0, 0)), np.zeros(0), "at least one piece"),
        (np.diag([1.0, np.nan]), np.ones(2), r"Q must be finite, got nan at index \(1, 1\)"),
        (np.eye(2), [1.0, np.inf], r"b must be finite, got inf at index \(1,\)"),
        (torch.full((2, 2), float("nan")), torch.ones(2), "Q must be finite"),
        (np.eye(2) * 1j, np.ones(2), "Q must be real"),
        (np.eye(2), ["a", "b"], "b must hold real numbers"),
    ],
)
def test_rejects(Q, b, message):
    with pytest.raises(ValueError, match=message):
        solve_dual(Q, b)
