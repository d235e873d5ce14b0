"""BORAT equals the paper's algorithm: a literal twin, SGD, closed forms and known limits."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from borat import ALIG, BORAT, StepInfo
from borat.constraints import L2Ball
from problems import as_functions, batches, least_squares, network, train
from reference import borat, project_l2


@pytest.mark.parametrize("bundle_size", [1, 2, 3, 4, 5, 7, 10])
@pytest.mark.parametrize(("momentum", "radius"), [(0.0, None), (0.9, None), (0.9, 2.5)])
@pytest.mark.parametrize("lr", [0.05, 3.0])
def test_equals_the_literal_twin(bundle_size, momentum, radius, lr):
    model = network()
    updates = 6
    data = batches(updates * max(bundle_size - 1, 1))
    start = parameters_to_vector(model.parameters()).detach().numpy().copy()
    expected = borat(
        start,
        as_functions(model, data),
        updates,
        bundle_size,
        lr,
        momentum,
        project=project_l2(radius) if radius else lambda w: w,
    )
    constraint = L2Ball(radius) if radius else None
    optimizer = BORAT(model.parameters(), lr, bundle_size, momentum=momentum, constraint=constraint)
    points = train(model, optimizer, data)
    for point, (reference, _) in zip(points, expected, strict=True):
        np.testing.assert_allclose(point.numpy(), reference, rtol=0, atol=1e-10)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("fused", [True, False])
def test_bundle_of_one_is_sgd(momentum, fused):
    ours, theirs = network(), network()
    theirs.load_state_dict(ours.state_dict())
    optimizer = BORAT(ours.parameters(), 0.3, 1, momentum=momentum)
    sgd = torch.optim.SGD(theirs.parameters(), 0.3, momentum=momentum, nesterov=momentum > 0, fused=fused)
    for x, y in batches(20):
        for model in (ours, theirs):
            model.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            if model is ours:
                optimizer.step(loss=loss)
            else:
                sgd.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-13)
    assert optimizer.last_step.kind == "SGD"
    assert optimizer.last_step.alpha == (1.0,)


def test_alig_is_the_closed_form():
    model = network()
    data = batches(10)
    optimizer = ALIG(model.parameters(), lr=0.7, momentum=0.0)
    for x, y in data:
        before = parameters_to_vector(model.parameters()).detach().clone()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        g = parameters_to_vector([p.grad for p in model.parameters()])
        optimizer.step(loss=loss)
        gamma = min(0.7, loss.item() / g.square().sum().item())
        moved = parameters_to_vector(model.parameters()).detach()
        torch.testing.assert_close(moved, before - gamma * g, rtol=0, atol=1e-14)
        assert optimizer.last_step.alpha[0] == pytest.approx(gamma / 0.7, rel=1e-12)
        assert optimizer.last_step.step_norm == pytest.approx(gamma * g.norm().item(), rel=1e-12)


def test_alig_without_a_cap_takes_the_polyak_step():
    w = nn.Parameter(torch.tensor([3.0, -4.0], dtype=torch.float64))
    optimizer = ALIG([w], lr=None, momentum=0.0)
    for k in range(1, 4):
        optimizer.zero_grad()
        loss = 1e6 * w.square().sum()  # far too steep for any fixed learning rate
        loss.backward()
        optimizer.step(loss=loss)
        torch.testing.assert_close(w.detach(), torch.tensor([3.0, -4.0], dtype=torch.float64) / 2**k)
        assert optimizer.last_step.kind == "ALIG"
        assert optimizer.last_step.step_size == pytest.approx(0.25e-6)
    w.grad = torch.ones(2, dtype=torch.float64)
    optimizer.step(loss=-0.0)
    assert optimizer.last_step.step_norm == 0.0


@pytest.mark.parametrize("lr", [10.0, 1e3, 1e8])
def test_nonconvex_example_in_one_update(lr):
    """f(w) = w^2 - |w|^3 from 0.6: BORAT3 reaches the minimum, ALI-G jumps back and forth."""

    def run(bundle_size, updates):
        w = nn.Parameter(torch.tensor(0.6, dtype=torch.float64))
        optimizer = BORAT([w], lr, bundle_size, momentum=0.0, same_batch=True)
        path = []

        def closure():
            optimizer.zero_grad()
            loss = w.square() - w.abs() ** 3
            loss.backward()
            return loss

        for _ in range(updates):
            optimizer.step(closure)
            path.append(w.item())
        return path

    # Two large steps cancel, so rounding errors of alpha are multiplied by lr.
    assert run(3, 1)[0] == pytest.approx(0.0, abs=1e-15 * lr)
    # The cycle is unstable: rounding errors grow by a factor of 16 with each update and finally break it.
    oscillating = np.array(run(2, 6))
    assert (np.abs(np.abs(oscillating) - 0.6) < 1e-6).all()
    assert (oscillating[1:] * oscillating[:-1] < 0).all()


@pytest.mark.parametrize("bundle_size", [2, 3, 5])
@pytest.mark.parametrize("lr", [0.1, 100.0])
def test_interpolation_to_machine_precision(bundle_size, lr):
    model, loss_of = least_squares()
    optimizer = BORAT(model.parameters(), lr, bundle_size, momentum=0.0)
    largest = math.inf
    for i in range(4000):
        optimizer.zero_grad()
        loss = loss_of(i)
        loss.backward()
        optimizer.step(loss=loss)
        if i % 100 == 99:
            optimizer.flush()
            largest = max(loss_of(i).item() for i in range(5))
            if largest < 1e-20:
                break
    assert largest < 1e-20


@pytest.mark.parametrize("bundle_size", [2, 3, 5])
@pytest.mark.parametrize("bound", [-0.7, 0.3, 12.0])
def test_lower_bound_is_subtraction(bundle_size, bound):
    data = batches(24)
    model = network()
    shifted = copy.deepcopy(model)
    plain = train(model, BORAT(model.parameters(), 2.0, bundle_size), data)
    optimizer = BORAT(shifted.parameters(), 2.0, bundle_size, lower_bound=bound)
    bounded = train(shifted, optimizer, data, lambda loss: loss + bound)
    for p, q in zip(plain, bounded, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-10)  # (loss + bound) - bound has lost digits
    assert optimizer.last_step.offsets[-1] == bound


def test_step_norm_with_groups():
    model = network()
    groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}]
    optimizer = BORAT(groups, lr=4.0, bundle_size=3, momentum=0.0)
    before = parameters_to_vector(model.parameters()).detach().clone()
    after = train(model, optimizer, batches(2))[-1]
    assert optimizer.last_step.step_norm == pytest.approx((after - before).norm().item(), rel=1e-12)


# StepInfo


def test_step_info_solves_the_dual_it_reports():
    model = network()
    optimizer = BORAT(model.parameters(), 2.0, 3, momentum=0.0)
    kinds = set()
    data = batches(60)
    for i in range(0, 60, 2):
        train(model, optimizer, data[i : i + 2])
        info = optimizer.last_step
        assert isinstance(info, StepInfo)
        kinds.add(info.kind)
        assert sum(info.alpha) == pytest.approx(1.0, abs=1e-12)
        # strong duality: D = alpha'b - |step|^2 / (2 lr)
        value = np.dot(info.alpha, info.offsets) - info.step_norm**2 / (2 * info.lr)
        assert info.dual_value == pytest.approx(value, rel=1e-10)
        assert info.support == tuple(np.flatnonzero(info.alpha))
    assert kinds <= {"SGD", "ESGD", "ZERO", "ALIG", "EALIG", "MAX2", "MAX3"}
    assert len(kinds) > 1


def test_kind_of_larger_bundles_is_the_support():
    w = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = BORAT([w], 100.0, 4, momentum=0.0)
    for i in range(3):
        optimizer.zero_grad()
        loss = (w[i] - 1.0).square()
        loss.backward()
        optimizer.step(loss=loss)
    assert optimizer.last_step.kind == "0+1+2+B"


@pytest.mark.parametrize("bundle_size", [1, 2, 3, 5])
def test_bundle_position_counts_the_pieces(bundle_size):
    model = network()
    optimizer = BORAT(model.parameters(), bundle_size=bundle_size)
    assert optimizer.last_step is None
    pieces = max(bundle_size - 1, 1)
    for i, batch in enumerate(batches(8)):
        assert optimizer.bundle_position == i % pieces
        train(model, optimizer, [batch])


# Evaluation, flush, same batch


@pytest.mark.parametrize("bundle_size", [2, 3, 5, 10])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_eval_is_the_centre_and_train_the_trial_point_to_the_bit(bundle_size, dtype):
    model = network(dtype)
    plain = copy.deepcopy(model)
    data = batches(3 * bundle_size, dtype)
    expected = train(plain, BORAT(plain.parameters(), 0.5, bundle_size), data)
    optimizer = BORAT(model.parameters(), 0.5, bundle_size)
    centre = parameters_to_vector(model.parameters()).detach().clone()
    for batch, point in zip(data, expected, strict=True):
        optimizer.eval()
        optimizer.eval()
        assert torch.equal(parameters_to_vector(model.parameters()), centre)
        optimizer.train()
        optimizer.train()
        train(model, optimizer, [batch])
        assert torch.equal(parameters_to_vector(model.parameters()), point)
        if optimizer.bundle_position == 0:
            centre = point


def test_step_in_evaluation_is_an_error():
    model = network()
    optimizer = BORAT(model.parameters())
    optimizer.eval()
    with pytest.raises(RuntimeError, match=r"train\(\)"):
        train(model, optimizer, batches(1))


@pytest.mark.parametrize("pieces", [1, 2, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_flush_completes_a_smaller_bundle(pieces, momentum):
    """A bundle of six that is flushed after n pieces is a bundle of n + 1."""
    model = network()
    small = copy.deepcopy(model)
    data = batches(pieces)
    expected = train(small, BORAT(small.parameters(), 2.0, pieces + 1, momentum=momentum), data)[-1]
    optimizer = BORAT(model.parameters(), 2.0, 6, momentum=momentum)
    train(model, optimizer, data)
    optimizer.eval()
    optimizer.flush()
    assert optimizer.bundle_position == 0
    torch.testing.assert_close(parameters_to_vector(model.parameters()).detach(), expected, rtol=0, atol=1e-13)
    optimizer.flush()
    train(model, optimizer, batches(1))


def test_flush_with_nothing_open_does_nothing():
    model = network()
    before = parameters_to_vector(model.parameters()).detach().clone()
    BORAT(model.parameters()).flush()
    assert torch.equal(parameters_to_vector(model.parameters()), before)


@pytest.mark.parametrize("bundle_size", [2, 3, 5])
def test_same_batch_is_the_batch_repeated(bundle_size):
    model = network()
    repeated = copy.deepcopy(model)
    data = batches(4)
    expected = train(
        repeated, BORAT(repeated.parameters(), 1.0, bundle_size), [b for b in data for _ in range(bundle_size - 1)]
    )
    optimizer = BORAT(model.parameters(), 1.0, bundle_size, same_batch=True)
    for x, y in data:

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        assert optimizer.bundle_position == 0
    assert torch.equal(parameters_to_vector(model.parameters()), expected[-1])


def test_same_batch_needs_a_closure_that_evaluates_again():
    model = network()
    optimizer = BORAT(model.parameters(), same_batch=True)
    loss = nn.functional.cross_entropy(model(batches(1)[0][0]), batches(1)[0][1])
    loss.backward()
    with pytest.raises(ValueError, match="closure must compute a new loss"):
        optimizer.step(lambda: loss)


def test_same_batch_ends_the_bundle_at_a_piece_that_is_not_finite():
    w = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    optimizer = BORAT([w], 1e6, 5, momentum=0.0, same_batch=True)

    def closure():
        optimizer.zero_grad()
        loss = (w - 0.9).square() if w > 0.96 else w * math.nan
        loss.backward()
        return loss

    with pytest.warns(UserWarning, match="not finite"):
        optimizer.step(closure)
    assert optimizer.bundle_position == 0
    assert w.item() == pytest.approx(0.95)


# Schedules


def test_lr_changed_within_a_bundle_counts_from_the_next():
    model = network()
    changed = copy.deepcopy(model)
    data = batches(8)
    plain = BORAT(model.parameters(), 1.0, 5)
    first = train(model, plain, data[:4])
    optimizer = BORAT(changed.parameters(), 1.0, 5)
    train(changed, optimizer, data[:2])
    optimizer.param_groups[0]["lr"] = 0.01
    second = train(changed, optimizer, data[2:4])
    assert torch.equal(first[-1], second[-1])
    assert optimizer.last_step.lr == 1.0
    train(changed, optimizer, data[4:])
    assert optimizer.last_step.lr == 0.01


@pytest.mark.parametrize("bundle_size", [1, 2, 3])
def test_momentum_that_is_switched_off_and_on(bundle_size):
    """v = momentum * v + u also holds while the momentum is zero: then v is the last step."""
    model, data = network(), batches(12 * max(bundle_size - 1, 1))
    optimizer = BORAT(model.parameters(), 0.5, bundle_size)
    centre = parameters_to_vector(model.parameters()).detach().clone()
    v = torch.zeros_like(centre)
    for update in range(12):
        momentum = 0.9 if update % 4 < 2 else 0.0
        optimizer.param_groups[0]["momentum"] = momentum
        pieces = max(bundle_size - 1, 1)
        gradients = []
        for x, y in data[pieces * update : pieces * (update + 1)]:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            gradients.append(parameters_to_vector([p.grad for p in model.parameters()]))
            optimizer.step(loss=loss)
        u = -0.5 * sum(a * g for a, g in zip(optimizer.last_step.alpha, gradients, strict=False))
        v = momentum * v + u
        centre = centre + u + momentum * v
        torch.testing.assert_close(parameters_to_vector(model.parameters()).detach(), centre, rtol=0, atol=1e-12)
