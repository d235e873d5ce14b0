"""FreeBORAT equals its six documented steps: a literal twin, closed forms, and extreme inputs."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from borat import FreeBORAT
from borat._numbers.rolling import WAY
from borat.constraints import L2Ball
from problems import BACKENDS, as_functions, batches, network, train, use_backend, vector
from reference import free_borat, project_l2

SIZES = [2, 3, 5, 9]
CASES = {
    "default": {},
    "bound": {"lower_bound": 0.2},
    "below zero": {"lower_bound": -1.5},
    "decay": {"weight_decay": 0.3},
    "half": {"aim": 0.5},
    "aim": {"aim": 1.0},
    "betas": {"betas": (0.5, 0.9)},
    "eps": {"eps": 1e-3},
    "lr": {"lr": 0.3},
    "ball": {"radius": 2.2},
    "all": {"lower_bound": 0.1, "weight_decay": 0.1, "radius": 2.2, "lr": 0.7, "aim": 0.8},
}


def make(params, bundle_size=3, *, radius=None, **options) -> FreeBORAT:
    return FreeBORAT(params, bundle_size, constraint=L2Ball(radius) if radius else None, **options)


def twin(model, data, bundle_size=3, *, radius=None, **options):
    project = project_l2(radius) if radius else lambda w: w
    return list(free_borat(vector(model).numpy(), as_functions(model, data), bundle_size, project=project, **options))


def result(model, optimizer) -> torch.Tensor:
    """Return the average, and check that reading it does not affect training."""
    before = vector(model)
    optimizer.eval()
    average = vector(model)
    optimizer.train()
    assert torch.equal(vector(model), before), "bit for bit"
    return average


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bundle_size", SIZES)
def test_equals_the_literal_twin(bundle_size, case, monkeypatch):
    start, data = network(), batches(12)
    expected = twin(start, data, bundle_size, **CASES[case])
    for backend in (None, *BACKENDS):
        if backend is not None:
            use_backend(backend, monkeypatch)
        model = copy.deepcopy(start)
        optimizer = make(model.parameters(), bundle_size, capturable=backend is None, **CASES[case])
        for batch, (y, x, _, alpha) in zip(data, expected, strict=True):
            (point,) = train(model, optimizer, [batch])
            np.testing.assert_allclose(point.numpy(), y, rtol=0, atol=1e-9)
            np.testing.assert_allclose(result(model, optimizer).numpy(), x, rtol=0, atol=1e-9)
            np.testing.assert_allclose(optimizer.last_step.alpha, alpha, rtol=0, atol=1e-9)


@pytest.mark.parametrize("bundle_size", SIZES)
@pytest.mark.parametrize("radius", [None, 2.2])
def test_groups_have_their_own_lr_and_decay(bundle_size, radius):
    model, data = network(), batches(11)
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in (model[0], model[2])]
    lr, decay = (np.repeat(values, sizes) for values in ([0.5, 2.0], [0.4, 0.0]))
    expected = twin(model, data, bundle_size, lr=lr, weight_decay=decay, radius=radius)
    groups = [
        {"params": model[0].parameters(), "lr": 0.5, "weight_decay": 0.4},
        {"params": model[2].parameters(), "lr": torch.tensor(2.0)},
    ]
    optimizer = make(groups, bundle_size, radius=radius)
    for point, (y, *_) in zip(train(model, optimizer, data), expected, strict=True):
        np.testing.assert_allclose(point.numpy(), y, rtol=0, atol=1e-9)
    assert optimizer.last_step.lr == (0.5, 2.0)
    assert optimizer.last_step.step_size[1] == pytest.approx(4.0 * optimizer.last_step.step_size[0])


def test_bundle_of_two_is_a_share_of_the_polyak_step():
    """alpha = aim * (1 - beta^k): the target is that share of the way from the loss to the bound."""
    model = network()
    optimizer = FreeBORAT(model.parameters(), 2, aim=0.5)
    for k, batch in enumerate(batches(10), start=1):
        train(model, optimizer, [batch])
        share = 0.5 * (1.0 - 0.9**k)
        info = optimizer.last_step
        assert info.alpha == pytest.approx((share, 1.0 - share))
        assert info.target == pytest.approx(info.gap * (1.0 - share))
        assert info.offsets == pytest.approx((info.gap, info.target))
        assert info.kind == "ALIG"


@pytest.mark.parametrize("capturable", [False, True])
def test_vanishing_gradients_make_no_endless_steps(capturable):
    """The loss stays and its gradients vanish: single Polyak steps grow without bound, the joint one does not."""
    sizes: dict[float | None, list[float]] = {None: [], 0.5: []}
    for aim, steps in sizes.items():
        weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = FreeBORAT([weight], 2, betas=(0.9, 0.5), aim=aim, capturable=capturable)
        for k in range(1, 40):
            slope = 0.5**k
            loss = 1.0 + slope * torch.sin(weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step(loss=loss)
            steps.append(optimizer.last_step.step_size)
            if aim is None:
                bundle = optimizer.state_dict()["param_groups"][0]["bundle"]
                assert steps[-1] <= bundle["gaps"] / bundle["squares"] * (1.0 + 1e-9)
    assert max(sizes[None]) < 100.0
    assert max(sizes[0.5]) > 1e6


# The gap


def falling(optimizer: FreeBORAT, w: nn.Parameter, losses: list[float], slope: float = 1.0) -> list[float]:
    """Return the gaps for these losses, with gradients that account for the whole fall of the loss."""
    gaps = []
    for loss in losses:
        w.grad = torch.full_like(w, slope)
        optimizer.step(loss=loss)
        gaps.append(optimizer.last_step.gap)
    return gaps


@pytest.mark.parametrize("capturable", [False, True])
def test_the_gap_of_a_loss_that_falls_like_a_root(capturable):
    """For f* + C / sqrt(k), the average so far exceeds the loss by the gap; the estimate is a multiple of it."""
    w = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = FreeBORAT([w], 2, capturable=capturable)
    falling(optimizer, w, [7.0 + 2.0 / math.sqrt(k) for k in range(1, 1001)])
    state = optimizer.state_dict()["param_groups"][0]["bundle"]
    assert state["won"] == pytest.approx(2.0 / math.sqrt(1000), rel=0.1)
    assert state["lost"] == 0.0
    scale = min(1.0, state["steepest"] / state["reach"])
    assert optimizer.last_step.gap == pytest.approx(9.0 * state["won"] * scale, rel=1e-6)


@pytest.mark.parametrize("capturable", [False, True])
def test_a_loss_that_has_risen_can_fall_by_as_much_again(capturable):
    """The running mean follows a rise from 1 to 2; half of it is forgotten after four times as many batches."""
    w = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = FreeBORAT([w], 2, capturable=capturable)
    gaps = falling(optimizer, w, [1.0, 1.1] * 200 + [2.0] * 1200, slope=100.0)  # so steep that noise is no limit
    assert gaps[399] < 0.5
    assert max(gaps[400:600]) > 0.8
    assert optimizer.last_step.gap == pytest.approx(0.5, rel=0.2)


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("is_confirmed", [False, True])
def test_noise_in_the_losses_limits_the_gap(is_confirmed, capturable):
    """The closed form for losses that fall from 2 to 1 and alternate by 1; gradients agree, or alternate after ten."""
    w = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = FreeBORAT([w], 2, capturable=capturable)
    for k in range(1, 1001):
        before = optimizer.state_dict()["param_groups"][0]["bundle"] if k == 1000 else {}
        falling(optimizer, w, [1.0 + 1.0 / k**2 + k % 2], slope=1.0 if is_confirmed or k <= 10 else (-1.0) ** k)
    state = optimizer.state_dict()["param_groups"][0]["bundle"]
    assert state["rise"] == pytest.approx(0.5, rel=0.01)
    assert (state["slide"] > 0.5 * state["steepest"]) == is_confirmed
    usual = max(0.01, before["cap"]) * 3.0
    limit = usual * (0.04 * math.sqrt(1000) + (state["fall"] / (10.0 * state["rise"])) ** 2)
    measured = (9.0 * state["won"] + state["lost"]) * min(1.0, state["steepest"] / state["reach"])
    assert limit < measured or is_confirmed
    assert optimizer.last_step.gap == pytest.approx(measured if is_confirmed else limit, rel=1e-6)


def test_a_loss_that_is_rescaled_within_the_run():
    """The loss becomes 100 times larger; a fresh optimizer from there on does not end much lower."""

    def distance(fresh: bool) -> float:
        torch.manual_seed(0)
        w = nn.Parameter(torch.zeros(10, dtype=torch.float64))
        target, optimizer = torch.ones_like(w), FreeBORAT([w])
        for k in range(2000):
            if fresh and k == 1000:
                optimizer.eval()
                optimizer = FreeBORAT([w])
            optimizer.zero_grad()
            noise = 0.3 * torch.randn_like(w)
            loss = (100.0 if k >= 1000 else 1.0) * (w - target + noise).abs().mean()
            loss.backward()
            optimizer.step(loss=loss)
        optimizer.eval()
        return (w - target).norm().item()

    assert distance(fresh=False) < 2.0 * distance(fresh=True) + 1e-3


def test_the_start_is_a_step_size_in_the_metric():
    model = network()
    optimizer = FreeBORAT(model.parameters(), 2)
    for k, batch in enumerate(batches(2), start=1):
        train(model, optimizer, [batch])
        assert optimizer.last_step.step_size == pytest.approx(0.5 * (1.0 - 0.9**k) * 0.01 * 0.97**k, rel=1e-3)


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("clip", [1.0, 1e-3])
def test_the_first_steps_of_many_parameters_are_short(clip, capturable):
    """All coordinates move alike in the metric, so that a step of size 0.01 would have a length of 4."""
    random = torch.Generator().manual_seed(0)
    target = torch.randn(160_000, dtype=torch.float64, generator=random)

    def batch(w: np.ndarray) -> tuple[float, np.ndarray]:
        return 0.5 * float(((w - target.numpy()) ** 2).sum()), clip * (w - target.numpy())

    w = nn.Parameter(torch.zeros_like(target))
    optimizer = FreeBORAT([w], capturable=capturable)
    expected = free_borat(w.detach().numpy().copy(), itertools.repeat(batch, 6), 3)
    for k, (y, *_) in enumerate(expected, start=1):
        loss, gradient = batch(w.detach().numpy().copy())
        w.grad = torch.from_numpy(gradient)
        optimizer.step(loss=loss)
        np.testing.assert_allclose(w.detach().numpy(), y, rtol=0, atol=1e-9)
        if k == 1:
            assert optimizer.last_step.step_norm == pytest.approx(0.5 * 0.1 * (1.0 - 0.0025 / WAY), rel=1e-6)


@pytest.mark.parametrize("shift", [1.0, 10.0, -3.0, 1e3])
def test_a_shift_of_the_loss_does_not_matter(shift):
    data = batches(60)
    model = network()
    other = copy.deepcopy(model)
    expected = train(model, FreeBORAT(model.parameters()), data)[-1]
    shifted = train(other, FreeBORAT(other.parameters()), data, lambda loss: loss + shift)[-1]
    torch.testing.assert_close(shifted, expected, rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("bundle_size", [2, 3, 5])
def test_a_factor_on_the_gradients_alone_does_not_matter(bundle_size):
    """Clipping shortens gradients. All factors are below 1, because gradients longer than the loss's are not scaled."""
    original = network()

    def iterates(factor: float) -> torch.Tensor:
        model = copy.deepcopy(original)
        for p in model.parameters():
            p.register_hook(lambda gradient: factor * gradient)
        return torch.stack(train(model, FreeBORAT(model.parameters(), bundle_size, eps=1e-30), batches(60)))

    expected = iterates(1e-2)
    for factor in (1e-4, 1e-8):
        torch.testing.assert_close(iterates(factor), expected, rtol=0.0, atol=1e-8)


@functools.cache
def regression_error(what: str, at: int, seed: int) -> float:
    """Return the error of a small regression; the loss or gradient of the batch ``at`` is a million times too large."""
    torch.manual_seed(seed)
    target, x = torch.randn(20, 1), torch.randn(256, 20)
    y = x @ target
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = FreeBORAT(model.parameters())
    for i in range(200):
        rows = torch.randint(256, (32,))
        optimizer.zero_grad()
        loss = (model(x[rows]) - y[rows]).square().mean()
        loss.backward()
        if i == at and what != "loss":
            for p in model.parameters():
                p.grad.mul_(1e6)
        optimizer.step(loss=loss * 1e6 if i == at and what != "gradient" else loss)
    optimizer.eval()
    return (model(x) - y).square().mean().item()


@pytest.mark.parametrize("at", [0, 1, 7, 30])
@pytest.mark.parametrize("what", ["loss", "gradient", "both"])
def test_one_exploding_batch_costs_little(at, what):
    """The geometric mean over twelve seeds: any change, however small, moves single runs by a third up or down."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ratios = [regression_error(what, at, seed) / regression_error("nothing", -1, seed) for seed in range(3, 15)]
    assert np.exp(np.mean(np.log(ratios))) < 1.3


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize(
    "first", [[(3.0, 1.0), (3.0, 1.0)], [(0.0, 0.0), (3.0, 1.0)]], ids=["equal losses", "no gradient"]
)
def test_a_start_that_tells_no_scale(first, capturable):
    """Two equal first losses, or a first batch without a gradient, do not stop training."""
    w = nn.Parameter(torch.tensor([3.0], dtype=torch.float64))
    optimizer = FreeBORAT([w], 2, capturable=capturable)
    for loss, slope in first:
        w.grad = torch.full_like(w, slope)
        optimizer.step(loss=loss)
    for _ in range(400):
        optimizer.zero_grad()
        loss = w.abs().sum()
        loss.backward()
        optimizer.step(loss=loss)
    optimizer.eval()
    assert w.abs().item() < 0.3


@pytest.mark.filterwarnings("ignore:.*dropped")
@pytest.mark.parametrize(("aim", "dropped"), [(None, 1), (0.5, 0)])
def test_outliers_are_left_out_where_the_gap_is_measured(aim, dropped):
    w = nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = FreeBORAT([w], aim=aim)
    steps(w, optimizer, [[1.0, 1.0]] * 5 + [[1e6, 1e6]] + [[1.0, 1.0]] * 3, [3.0] * 9)
    assert optimizer.dropped_batches == dropped


def test_batches_without_a_gradient_are_counted():
    w = nn.Parameter(torch.ones(2))
    optimizer = FreeBORAT([w])
    assert optimizer.zero_steps == 0
    for g in (1.0, 0.0, 0.0, 1.0):
        w.grad = torch.full((2,), g)
        optimizer.step(loss=1.0)
    assert optimizer.zero_steps >= 1
    assert optimizer.dropped_batches == 0


def test_last_step_tells_what_the_centre_did():
    model = network()
    optimizer = FreeBORAT(model.parameters(), 4, lr=0.6)
    for batch in batches(12):
        before = [
            optimizer.state[p]["centre"].clone() if p in optimizer.state else p.clone() for p in model.parameters()
        ]
        train(model, optimizer, [batch])
        moved = [optimizer.state[p]["centre"] - z for p, z in zip(model.parameters(), before, strict=True)]
        info = optimizer.last_step
        assert parameters_to_vector(moved).norm().item() == pytest.approx(info.step_norm, rel=1e-9)
        assert sum(info.alpha) == pytest.approx(1.0)
        assert info.gap > 0.0
        assert info.step_size > 0.0
        assert info.support == tuple(i for i, a in enumerate(info.alpha) if a)


@pytest.mark.parametrize("bundle_size", [2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("factor", [1e-6, 1e-3, 1e3, 1e6])
def test_the_scale_of_the_loss_does_not_matter(bundle_size, dtype, factor):
    data = batches(25, dtype)
    points = []
    for scale in (1.0, factor):
        torch.manual_seed(0)
        model = network(dtype)
        optimizer = FreeBORAT(model.parameters(), bundle_size, eps=1e-30)
        points.append(train(model, optimizer, data, lambda loss, scale=scale: loss * scale)[-1])
    tolerance = 1e-10 if dtype == torch.float64 else 2e-3  # rounding grows along a trajectory
    torch.testing.assert_close(*points, rtol=0, atol=tolerance)


# Extremes


def steps(w: nn.Parameter, optimizer: FreeBORAT, gradients, losses) -> list[list[float]]:
    points = []
    for g, loss in zip(gradients, losses, strict=True):
        w.grad = torch.tensor(g, dtype=w.dtype)
        optimizer.step(loss=loss)
        points.append(w.tolist())
    return points


@pytest.mark.parametrize("bundle_size", SIZES)
def test_a_loss_below_the_bound_is_warned_of_and_never_climbs(bundle_size):
    w = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = FreeBORAT([w], bundle_size, lower_bound=10.0, aim=0.5)
    with pytest.warns(UserWarning, match="the loss 3 is below lower_bound=10") as record:
        points = steps(w, optimizer, [[1.0, 1.0]] * 6, [3.0] * 6)
    assert len(record) == 1
    assert points == [[1.0, -2.0]] * 6
    assert optimizer.last_step.kind in ("ZERO", "B")
    assert optimizer.last_step.gap == 0.0
    assert optimizer.zero_steps == 6


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bundle_size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "gradients",
    [
        [[0.0, 0.0]],
        [[1.0, 2.0]],
        [[1.0, 2.0], [-1.0, -2.0]],
        [[1e-30, 2e-30]],
        [[1e30, -1e30]],
        [[1e30, 0.0], [0.0, 1e-30], [1.0, 1.0]],
        [[0.0, 0.0], [3.0, 0.0]],
    ],
    ids=["zero", "duplicate", "opposite", "short", "long", "mixed", "zero between"],
)
def test_extreme_gradients(gradients, dtype, bundle_size, backend, monkeypatch):
    """Steps are never NaN, and never go below the target of the newest piece in the metric's model."""
    use_backend(backend, monkeypatch)
    w = nn.Parameter(torch.tensor([1.0, -2.0], dtype=dtype))
    optimizer = FreeBORAT([w], bundle_size)
    warnings.simplefilter("ignore")
    for i in range(12):
        g = torch.tensor(gradients[i % len(gradients)], dtype=dtype)
        w.grad = g
        optimizer.step(loss=1.0)
        assert w.isfinite().all()
        assert all(t.isfinite().all() for t in optimizer.state[w].values() if isinstance(t, torch.Tensor))
        info = optimizer.last_step
        assert all(math.isfinite(x) for x in (*info.alpha, *info.offsets, info.step_norm, info.step_size))
        if not g.any():
            assert info.step_norm == 0.0
    assert optimizer.dropped_batches <= 1  # among gradients that differ by many orders of magnitude, one is an outlier


@pytest.mark.parametrize("bundle_size", [3, 5])
def test_a_gradient_missing_at_times_is_zero(bundle_size):
    """If it is missing at first, the parameter joins later, as if its gradients had been zero."""

    def run(explicit_zero):
        torch.manual_seed(0)
        a, b = nn.Parameter(torch.randn(4).double()), nn.Parameter(torch.randn(3).double())
        optimizer = FreeBORAT([a, b], bundle_size)
        for i in range(16):
            optimizer.zero_grad()
            uses_b = i > 4 and i % 3 > 0
            loss = (a - i).square().sum() + (b + i).square().sum() * uses_b
            loss.backward()
            if not uses_b and not explicit_zero:
                b.grad = None
            optimizer.step(loss=loss)
        return torch.cat((a, b)).detach()

    torch.testing.assert_close(run(True), run(False), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bundle_size", [2, 5])
def test_it_interpolates(bundle_size):
    """On least squares that can be solved, the loss of the average goes to zero."""
    torch.manual_seed(0)
    model = nn.Linear(40, 1, bias=False).double()
    x = torch.randn(20, 40, dtype=torch.float64)
    y = x @ torch.randn(40, 1, dtype=torch.float64)
    optimizer = FreeBORAT(model.parameters(), bundle_size)
    first = (model(x) - y).square().mean().item()
    for i in range(3000):
        batch = slice(4 * (i % 5), 4 * (i % 5) + 4)
        optimizer.zero_grad()
        loss = (model(x[batch]) - y[batch]).square().mean()
        loss.backward()
        optimizer.step(loss=loss)
    optimizer.eval()
    assert (model(x) - y).square().mean().item() < 1e-4 * first


def test_beta_that_a_schedule_changes():
    """A change of beta does not move the average."""
    model, data = network(), batches(12)
    optimizer = FreeBORAT(model.parameters())
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2.0, total_steps=12)
    x = vector(model)
    for k, batch in enumerate(data, start=1):
        train(model, optimizer, [batch])
        beta = optimizer.param_groups[0]["betas"][0]
        z = parameters_to_vector([optimizer.state[p]["centre"] for p in model.parameters()])
        x = x + 2.0 / (k + 1) * (z - x)
        torch.testing.assert_close(vector(model), (1 - beta) * z + beta * x, rtol=0, atol=1e-12)
        torch.testing.assert_close(result(model, optimizer), x, rtol=0, atol=1e-12)
        scheduler.step()
    assert beta != 0.9


# Batch normalisation


class Normalised(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Dropout(0.2), nn.Linear(7, 3))


def test_statistics_are_measured_at_the_result():
    from borat.batchnorm import update_statistics

    model, data = Normalised().double(), batches(6)
    optimizer = FreeBORAT(model.parameters())
    train(model, optimizer, data)
    random = torch.get_rng_state()
    update_statistics(model, data, optimizer)
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training
    hidden = torch.stack([model[0](x).mean(0) for x, _ in data])
    torch.testing.assert_close(model[1].running_mean, hidden.mean(0))
    assert model[1].momentum == 0.1
    with pytest.raises(RuntimeError, match="call the optimizer's train"):
        train(model, optimizer, data[:1])


def test_statistics_of_models_with_other_batches():
    from borat.batchnorm import update_statistics

    model = Normalised().eval()
    batches = [{"inputs": torch.randn(8, 5)} for _ in range(5)]
    update_statistics(model, batches, count=2, forward=lambda model, batch: model(batch["inputs"]))
    assert model[1].num_batches_tracked == 2
    assert not model.training
    hidden = torch.cat([model[0](batch["inputs"]) for batch in batches[:2]])
    torch.testing.assert_close(model[1].running_mean, hidden.mean(0))


def test_frozen_layers_keep_their_statistics():
    from borat.batchnorm import update_statistics

    frozen, without_gradients = nn.BatchNorm1d(3).eval(), nn.BatchNorm1d(3)
    without_gradients.requires_grad_(False)
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3))
    model.add_module("frozen", frozen)
    model.add_module("fixed", without_gradients)
    before = [copy.deepcopy(layer.state_dict()) for layer in (frozen, without_gradients)]
    update_statistics(model, [torch.randn(4, 3) + 5 for _ in range(2)])
    torch.testing.assert_close([dict(frozen.state_dict()), dict(without_gradients.state_dict())], [*map(dict, before)])
    assert (frozen.training, without_gradients.training, model[0].training) == (False, True, True)
    assert model[0].running_mean.min() > 3


def test_instance_norm_and_no_batches():
    from borat.batchnorm import update_statistics

    model = nn.Sequential(nn.InstanceNorm1d(3, track_running_stats=True, momentum=0.3))
    data = [torch.randn(4, 3, 6) + k for k in range(3)]
    update_statistics(model, data)
    torch.testing.assert_close(model[0].running_mean, torch.stack(data).mean((0, 1, 3)))
    assert model[0].momentum == 0.3
    kept = model[0].running_mean.clone()
    with pytest.raises(ValueError, match="batches must contain at least one batch, got none"):
        update_statistics(model, [])
    assert torch.equal(model[0].running_mean, kept)
