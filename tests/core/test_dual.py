"""The dual is solved exactly on the host, in C and in NumPy, for hard problems of all kinds."""

from __future__ import annotations

import os

import numpy as np
import pytest
import quadprog
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from borat import DualSolution, solve_dual
from borat._numbers import dual
from duals import Problem, assert_maximal, degenerate, extreme, value
from reference import enumerate_dual

NEEDS_LIBRARY = pytest.mark.skipif(dual.library is None, reason="there was no C compiler")


@pytest.fixture(params=[pytest.param("C", marks=NEEDS_LIBRARY), "NumPy"], scope="module", autouse=True)
def _solver(request):
    """Run all tests with both implementations."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "NumPy":
            patch.setattr(dual, "library", None)
        yield


def assert_solved(Q: np.ndarray, b: np.ndarray, solution: DualSolution) -> None:
    assert_maximal(Q, b, solution.alpha)
    assert solution.support == tuple(np.flatnonzero(solution.alpha))
    assert solution.value == pytest.approx(value(Q, b, solution.alpha), rel=1e-12, abs=1e-13 * np.abs(Q).max())


def of_a_bundle(rng: np.random.Generator, n: int) -> Problem:
    """Return a problem as in an optimizer: the bound last, zero and duplicate gradients, losses down to 1e-14."""
    Q, b = degenerate(rng, n)
    Q[-1] = Q[:, -1] = b[-1] = 0.0
    other, scale = rng.integers(n), 10.0 ** rng.uniform(-14, 3)
    if rng.random() < 0.5:
        Q[other] = Q[:, other] = 0.0
    if rng.random() < 0.2:
        b[:] = 0.0
    return Q * scale, b * scale


@pytest.mark.parametrize("problem", [degenerate, extreme, of_a_bundle])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 32])
def test_hard_problems(n, problem):
    rng = np.random.default_rng(n)
    for _ in range(60):
        Q, b = problem(rng, n)
        assert_solved(Q, b, solve_dual(Q, b))


def test_fuzzed():
    """Problems of all kinds and sizes. To test more of them: BORAT_FUZZ=100000 pytest -k fuzzed."""
    rng = np.random.default_rng(0)
    for _ in range(int(os.environ.get("BORAT_FUZZ", "500"))):
        Q, b = extreme(rng, int(rng.integers(1, 33 if rng.random() < 0.3 else 11)))
        assert_maximal(Q, b, solve_dual(Q, b).alpha)


numbers = st.floats(-10, 10, allow_nan=False, width=32)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), n=st.integers(1, 10), d=st.integers(1, 6))
def test_any_small_problem(data, n, d):
    A = np.array(data.draw(st.lists(st.lists(numbers, min_size=d, max_size=d), min_size=n, max_size=n)))
    b = np.array(data.draw(st.lists(numbers, min_size=n, max_size=n)))
    assert_solved(A @ A.T, b, solve_dual(A @ A.T, b))


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


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_problem_that_is_not_finite_has_nan_weights(bad):
    rng = np.random.default_rng(0)
    for _ in range(50):
        n = int(rng.integers(1, 9))
        Q, b = extreme(rng, n)
        row, column = rng.integers(n, size=2)
        if rng.random() < 0.5:
            b[row] = bad
        else:
            Q[row, column] = Q[column, row] = bad
        alpha, found = dual.maximise(Q, b)
        assert np.isnan(alpha).all()
        assert alpha.shape == (n,)
        assert np.isnan(found)


def test_the_same_problem_gives_the_same_bits():
    rng = np.random.default_rng(0)
    for n in (2, 5, 9, 32):
        Q, b = extreme(rng, n)
        np.testing.assert_array_equal(solve_dual(Q, b).alpha, solve_dual(Q.copy(), b.copy()).alpha)


@pytest.mark.parametrize("exponent", [-900, -30, -1, 1, 30, 900])
def test_scaling_by_a_power_of_two_changes_no_bit(exponent):
    rng = np.random.default_rng(0)
    for n in (1, 2, 5, 9, 12):
        Q, b = degenerate(rng, n)
        Q, b = Q / max(np.abs(Q).max(), 1e-300), b / max(np.abs(b).max(), 1e-300)
        scaled = solve_dual(np.ldexp(Q, exponent), np.ldexp(b, exponent))
        np.testing.assert_array_equal(scaled.alpha, solve_dual(Q, b).alpha)


def test_pieces_of_very_different_sizes():
    A, b = np.diag([1e-150, 3e140, 1e-150, 0.0]), np.array([1e-300, 1e280, 2e-300, 0.0])
    assert_maximal(A @ A.T, b, solve_dual(A @ A.T, b).alpha)


def test_only_the_symmetric_part_enters():
    rng = np.random.default_rng(0)
    for n in (2, 5, 12):
        Q, b = degenerate(rng, n)
        skew = np.triu(np.full((n, n), np.abs(Q).max()), 1)
        assert_maximal(Q, b, solve_dual(Q + skew - skew.T, b).alpha)


def test_slightly_indefinite_matrix():
    rng = np.random.default_rng(0)
    for n in (3, 5, 9, 20):
        for _ in range(50):
            A = rng.standard_normal((n, 3)).astype(np.float32)
            Q = (A @ A.T).astype(np.float64)  # rounded to float32: rank 3 up to negative eigenvalues of about 1e-7
            b = rng.standard_normal(n)
            assert_maximal(Q, b, solve_dual(Q, b).alpha, gap=1e-6)


def test_tiny_weights_keep_their_digits():
    """The Polyak step of a gradient that is a million times too long: alpha = 1 / |g|^2."""
    solution = solve_dual([[1e12, 0.0], [0.0, 0.0]], [1.0, 0.0])
    assert solution.alpha[0] == pytest.approx(1e-12, rel=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-10, 1e-14])
def test_a_zero_gradient_does_not_stall_the_ascent(scale):
    Q, b = scale * np.diag([0.0, 2.0, 0.0]), scale * np.array([1e-10, 0.5, 0.0])
    np.testing.assert_allclose(solve_dual(Q, b).alpha, [0.75, 0.25, 0.0], atol=1e-9)


# The seven subproblems of the paper's table for N = 3, with gradients g, g' and offsets b1, b2 above a bound of 0

CLOSED_FORMS = {
    "SGD": lambda gg, gh, hh, b1, b2: (1.0, 0.0),
    "ESGD": lambda gg, gh, hh, b1, b2: (0.0, 1.0),
    "ZERO": lambda gg, gh, hh, b1, b2: (0.0, 0.0),
    "EALIG": lambda gg, gh, hh, b1, b2: (0.0, b2 / hh),
    "ALIG": lambda gg, gh, hh, b1, b2: (b1 / gg, 0.0),
    # In terms of offsets b1, b2. (The paper's row has the losses, for gamma = 1, with b2 = loss' + <g, g'>.)
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
    """Algorithm 1 starts at d_max = 0, which is correct only for a bound of 0."""
    solution = solve_dual([[1.0, 0.0], [0.0, 0.0]], [-5.0, -7.0])
    assert solution.support == (0,)
    assert solution.value == -5.5


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
