"""Each projection satisfies its optimality condition: <w - u, z - u> <= 0 for every feasible z."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from borat.constraints import Box, L1Ball, L2Ball, NonNegative, Simplex

SHAPES = [(3, 4), (5,), (), (0,), (2, 1, 3)]


def parameters(scale: float, dtype=torch.float64) -> list[torch.Tensor]:
    return [scale * torch.randn(shape, dtype=dtype) for shape in SHAPES]


def flat(tensors) -> torch.Tensor:
    return torch.cat([t.flatten() for t in tensors])


def random_simplex(size: int, total: float) -> torch.Tensor:
    return total * torch.distributions.Dirichlet(torch.full((size,), 0.3, dtype=torch.float64)).sample()


def random_sign(size: int) -> torch.Tensor:
    return torch.randint(0, 2, (size,)) * 2.0 - 1.0


FEASIBLE = {
    L2Ball(1.5): lambda n: torch.nn.functional.normalize(torch.randn(n, dtype=torch.float64), dim=0) * 1.5,
    L1Ball(1.5): lambda n: random_simplex(n, 1.5) * random_sign(n),
    Box(-0.3, 0.8): lambda n: torch.empty(n, dtype=torch.float64).uniform_(-0.3, 0.8),
    NonNegative(): lambda n: torch.randn(n, dtype=torch.float64).abs(),
    Simplex(2.0): lambda n: random_simplex(n, 2.0),
}
IS_FEASIBLE = {
    L2Ball: lambda u: u.norm() <= 1.5 * (1 + 1e-12),
    L1Ball: lambda u: u.abs().sum() <= 1.5 * (1 + 1e-12),
    Box: lambda u: bool(((u >= -0.3) & (u <= 0.8)).all()),
    NonNegative: lambda u: bool((u >= 0).all()),
    Simplex: lambda u: bool((u >= 0).all()) and abs(u.sum() - 2.0) < 1e-12,
}


@pytest.mark.parametrize("constraint", FEASIBLE, ids=repr)
@pytest.mark.parametrize("scale", [0.01, 1.0, 1e6])
def test_optimality(constraint, scale):
    params = parameters(scale)
    w = flat(params)
    constraint(params)
    u = flat(params)
    assert IS_FEASIBLE[type(constraint)](u)
    for _ in range(200):
        z = FEASIBLE[constraint](len(w))
        assert (w - u) @ (z - u) <= 1e-9 * scale**2
    again = [p.clone() for p in params]
    constraint(again)
    torch.testing.assert_close(flat(again), u, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("constraint", FEASIBLE, ids=repr)
def test_feasible_points_stay(constraint):
    u = FEASIBLE[constraint](12) * (0.99 if not isinstance(constraint, Simplex) else 1.0)
    params = [u[:5].clone(), u[5:].clone()]
    constraint(params)
    torch.testing.assert_close(flat(params), u, rtol=0, atol=1e-15)


@pytest.mark.parametrize("constraint", FEASIBLE, ids=repr)
def test_accepts_a_generator_and_a_single_tensor(constraint):
    params = parameters(5.0)
    expected = [p.clone() for p in params]
    constraint(expected)
    constraint(p for p in params)
    assert torch.equal(flat(params), flat(expected))
    single = flat(parameters(5.0))
    pair = [single[:4].clone(), single[4:].clone()]
    constraint(single)
    constraint(pair)
    torch.testing.assert_close(single, flat(pair))


@pytest.mark.parametrize("constraint", FEASIBLE, ids=repr)
def test_float32_and_mixed_precision(constraint):
    params = [torch.randn(100), torch.randn(50, dtype=torch.float64), torch.randn(30).bfloat16()]
    exact = [p.to(torch.float64, copy=True) for p in params]
    constraint(params)
    constraint(exact)
    torch.testing.assert_close(flat([p.double() for p in params]), flat(exact), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("size", [1e20, 1e-25])
def test_l2_norms_beyond_float32(size):
    w = torch.full((4,), size)
    L2Ball(size)(w)
    torch.testing.assert_close(w / size, torch.full((4,), 0.5))


def test_l2_norm_of_many_parameters():
    w = torch.rand(5_000_000)
    L2Ball(100.0)(w)
    assert w.double().norm() == pytest.approx(100.0, rel=1e-6)


@pytest.mark.parametrize("constraint", [Simplex(1.0), L1Ball(1.0)], ids=repr)
@pytest.mark.parametrize("offset", [100.0, 1e6])
def test_sums_are_right_far_from_the_set(constraint, offset):
    w = torch.tensor([offset, offset + 0.25, offset + 0.5])
    constraint(w)
    assert w.sum() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("constraint", [Simplex(1.0), L1Ball(1.0)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [4e13, 3e20, 1e38])
def test_nothing_is_lost_very_far_from_the_set(constraint, dtype, size):
    w = torch.tensor([size, 1.0, 0.0, size], dtype=dtype)
    constraint(w)
    assert w.tolist() == [0.5, 0.0, 0.0, 0.5]


def test_l1_ball_is_sparse():
    params = parameters(1.0)
    L1Ball(0.5)(params)
    assert (flat(params) == 0).sum() > 10


def test_large_l1_projection_equals_the_sorting_method():
    w = torch.randn(100_000, dtype=torch.float64)
    magnitudes = w.abs().sort(descending=True).values
    thresholds = (magnitudes.cumsum(0) - 100.0) / torch.arange(1, len(w) + 1)
    threshold = thresholds[(magnitudes > thresholds).nonzero().max()]
    expected = w.sgn() * (w.abs() - threshold).clamp(min=0)
    L1Ball(100.0)(w)
    torch.testing.assert_close(w, expected, rtol=0, atol=1e-12)


def test_l2_ball_of_complex_parameters():
    w = torch.tensor([3.0 + 4.0j])
    L2Ball(1.0)([w])
    torch.testing.assert_close(w, torch.tensor([0.6 + 0.8j]))
    w = torch.tensor([3e30 + 4e30j])
    L2Ball(1.0)([w])
    torch.testing.assert_close(w, torch.tensor([0.6 + 0.8j]))


def test_parameters_that_require_gradients():
    w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    for constraint in FEASIBLE:
        constraint([w])
        assert w.requires_grad
        assert w.grad_fn is None


@pytest.mark.parametrize("constraint", FEASIBLE, ids=repr)
def test_copies(constraint):
    assert copy.deepcopy(constraint) == constraint
    assert pickle.loads(pickle.dumps(constraint)) == constraint


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L2Ball(0.0), "radius must be a positive, finite number, got 0.0"),
        (lambda: L2Ball(float("nan")), "radius must be a positive, finite number, got nan"),
        (lambda: L1Ball(-1), "radius must be a positive, finite number, got -1"),
        (lambda: L1Ball("1"), "radius must be a positive, finite number, got '1'"),
        (lambda: Simplex(float("inf")), "total must be a positive, finite number, got inf"),
        (lambda: Box(1.0, 0.0), "low <= high, got low=1.0, high=0.0"),
        (lambda: Box(None, 0.0), "low and high must be numbers"),
        (lambda: Box(-1, 1)([torch.tensor(1j)]), "Box needs real parameters"),
        (lambda: NonNegative()([torch.tensor(1j)]), "NonNegative needs real parameters"),
        (lambda: Simplex()([torch.tensor(1j)]), "Simplex needs real parameters"),
    ],
)
def test_rejects(make, message):
    with pytest.raises(ValueError, match=message):
        make()
