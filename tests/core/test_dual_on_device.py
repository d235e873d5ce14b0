"""Batches of duals are solved as exactly as on the host, and without device syncs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from borat import solve_dual
from borat._numbers.dual_batched import LIMIT
from borat._numbers.torch_ops import solve_batch
from duals import Problem, assert_maximal, degenerate, extreme


def batch(problems: list[Problem]) -> tuple[Tensor, Tensor]:
    return torch.tensor(np.array([Q for Q, _ in problems])), torch.tensor(np.array([b for _, b in problems]))


def assert_as_good_as_the_host(problems: list[Problem]) -> None:
    solutions = solve_dual(*batch(problems))
    for i, (Q, b) in enumerate(problems):
        alpha, size = solutions.alpha[i].numpy(), max(np.abs(Q).max(), np.abs(b).max())
        assert_maximal(Q, b, alpha)
        assert solutions.value[i].item() == pytest.approx(solve_dual(Q, b).value, rel=1e-12, abs=1e-12 * size)
        np.testing.assert_array_equal(solutions.support[i].numpy(), alpha > 0.0)


@pytest.mark.parametrize("problem", [degenerate, extreme])
@pytest.mark.parametrize("n", range(1, LIMIT + 1))
def test_hard_problems(n, problem):
    rng = np.random.default_rng(n)
    assert_as_good_as_the_host([problem(rng, n) for _ in range(150)])


numbers = st.floats(-10, 10, allow_nan=False, width=32)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), n=st.integers(1, LIMIT), d=st.integers(1, 6))
def test_any_small_problem(data, n, d):
    A = np.array(data.draw(st.lists(st.lists(numbers, min_size=d, max_size=d), min_size=n, max_size=n)))
    b = np.array(data.draw(st.lists(numbers, min_size=n, max_size=n)))
    assert_as_good_as_the_host([(A @ A.T, b)])


@pytest.mark.parametrize("n", range(1, LIMIT + 1))
def test_weights_equal_the_hosts(n):
    """For problems with a unique solution."""
    A = torch.randn(50, n, n + 2, dtype=torch.float64)
    A[:, 0] = 0.0
    Q, b = A @ A.mT, torch.randn(50, n, dtype=torch.float64)
    alpha = solve_dual(Q, b).alpha
    expected = [solve_dual(*problem) for problem in zip(Q, b, strict=True)]
    torch.testing.assert_close(alpha, torch.stack([s.alpha for s in expected]), rtol=0.0, atol=1e-10)
    assert [tuple(np.flatnonzero(a)) for a in alpha] == [s.support for s in expected]


@pytest.mark.parametrize("exponent", [-900, -300, -1, 1, 300, 900])
def test_scaling_by_a_power_of_two_changes_no_weight(exponent):
    for n in (2, 5):
        A = torch.randn(20, n, n + 2, dtype=torch.float64)
        Q, b, factor = A @ A.mT, torch.randn(20, n, dtype=torch.float64), 2.0**exponent
        scaled, alpha = solve_dual(Q * factor, b * factor).alpha, solve_dual(Q, b).alpha
        torch.testing.assert_close(scaled, alpha, rtol=1e-12, atol=0.0)


def test_tiny_weights_keep_their_digits():
    Q, b = torch.tensor([[[1e12, 0.0], [0.0, 0.0]]]), torch.tensor([[1.0, 0.0]])
    assert solve_dual(Q, b).alpha[0, 0].item() == pytest.approx(1e-12, rel=1e-12)


# The batch


def test_shapes():
    Q, b = torch.eye(3).expand(2, 5, 3, 3), torch.arange(3.0)
    solutions = solve_dual(Q, b)
    assert solutions.alpha.shape == solutions.support.shape == (2, 5, 3)
    assert solutions.value.shape == (2, 5)
    assert solutions.alpha.dtype == solutions.value.dtype == torch.float64
    assert solve_dual(torch.eye(3), b.expand(4, 3)).alpha.shape == (4, 3)
    assert solve_dual(torch.eye(3).expand(0, 3, 3), b).alpha.shape == (0, 3)


def test_only_the_symmetric_part_enters():
    Q, b = torch.randn(10, 4, 4, dtype=torch.float64), torch.randn(10, 4, dtype=torch.float64)
    Q = Q @ Q.mT
    skew = torch.triu(torch.ones(4, 4, dtype=torch.float64), 1)
    torch.testing.assert_close(solve_dual(Q + skew - skew.mT, b).alpha, solve_dual(Q, b).alpha)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_problem_that_is_not_finite_is_nan_and_the_others_are_not(bad):
    Q, b = torch.eye(3).repeat(6, 1, 1), torch.zeros(6, 3)
    Q[1, 0, 0] = Q[2, 1, 0] = b[4, 2] = bad
    solutions = solve_dual(Q, b)
    affected = torch.tensor([False, True, True, False, True, False])
    assert torch.equal(solutions.alpha.isnan(), affected[:, None].expand(6, 3))
    assert torch.equal(solutions.value.isnan(), affected)


@pytest.mark.parametrize(
    ("Q", "b", "message"),
    [
        (torch.ones(2, 2, 3), torch.ones(2, 2), r"Q must hold square matrices, got shape \(2, 2, 3\)"),
        (torch.ones(3), torch.ones(2, 3), r"Q must hold square matrices, got shape \(3,\)"),
        (torch.ones(2, 3, 3), torch.ones(2, 2), r"agree in size, got Q of shape \(2, 3, 3\) and b of shape \(2, 2\)"),
        (torch.ones(4, 9, 9), torch.ones(4, 9), "must have 1 to 8 pieces, got 9"),
        (torch.ones(4, 0, 0), torch.ones(4, 0), "must have 1 to 8 pieces, got 0"),
        (torch.ones(2, 3, 3) * 1j, torch.ones(2, 3), "Q must be real"),
        (torch.ones(2, 3, 3), torch.ones(5, 3), r"must have batch dimensions that broadcast, got \(2,\) and \(5,\)"),
    ],
)
def test_rejects(Q, b, message):
    with pytest.raises(ValueError, match=message):
        solve_dual(Q, b)


# The device


@pytest.mark.parametrize("n", range(1, LIMIT + 1))
def test_no_device_sync(n):
    """Fake tensors have no values: reading one is an error, which the last line verifies."""
    with FakeTensorMode():
        for shape in ((3,), (2, 3)):
            Q, b = torch.empty(*shape, n, n, device="cuda"), torch.empty(*shape, n, device="cuda")
            alpha, value, support = solve_dual(Q, b)
            assert alpha.shape == support.shape == (*shape, n)
            assert {alpha.device.type, value.device.type, support.device.type} == {"cuda"}
        with pytest.raises(DataDependentOutputException):
            value.sum().item()


@pytest.mark.slow
def test_compiles_to_one_graph():
    torch._dynamo.reset()
    rng = np.random.default_rng(0)
    Q, b = batch([degenerate(rng, 3) for _ in range(15)])
    compiled = torch.compile(solve_batch, fullgraph=True, backend="aot_eager")(Q, b)
    torch.testing.assert_close(compiled, solve_batch(Q, b))
