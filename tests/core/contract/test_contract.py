"""What PyTorch users expect of an optimizer, line by line."""

from __future__ import annotations

import copy
import io
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from borat import ALIG, BORAT, FreeBORAT
from borat.constraints import L2Ball
from flavours import over_flavours
from problems import batches, network, train


def vector(model: nn.Module) -> torch.Tensor:
    return parameters_to_vector(model.parameters()).detach().clone()


def through_disk(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# State


@over_flavours
def test_state_is_lazy(make):
    model = network()
    optimizer = make(model.parameters())
    assert optimizer.bundle_position == 0
    assert optimizer.dropped_batches == 0
    optimizer.eval()
    optimizer.train()
    optimizer.flush()
    assert not optimizer.state
    train(model, optimizer, batches(1))
    assert optimizer.state


@over_flavours
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_resume_from_every_position_is_exact(make, dtype):
    data = batches(2 * make.size + 3, dtype)
    model = network(dtype)
    start = copy.deepcopy(model)
    expected = train(model, make(model.parameters(), 0.7, constraint=L2Ball(2.0)), data)
    for split in range(1, make.size + 2):
        first = copy.deepcopy(start)
        optimizer = make(first.parameters(), 0.7, constraint=L2Ball(2.0))
        train(first, optimizer, data[:split])
        saved = through_disk({"model": first.state_dict(), "optimizer": optimizer.state_dict()})
        second = network(dtype)
        resumed = make(second.parameters(), 0.1, constraint=L2Ball(2.0))
        second.load_state_dict(saved["model"])
        resumed.load_state_dict(saved["optimizer"])
        assert resumed.bundle_position == optimizer.bundle_position
        points = train(second, resumed, data[split:])
        assert all(torch.equal(p, q) for p, q in zip(points, expected[split:], strict=True))


@over_flavours
def test_state_saved_in_evaluation_resumes_with_train(make):
    data = batches(9)
    model = network()
    other = copy.deepcopy(model)
    expected = train(other, make(other.parameters(), 0.7), data)
    optimizer = make(model.parameters(), 0.7)
    train(model, optimizer, data[:6])
    optimizer.eval()
    saved = through_disk({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    second = network()
    resumed = make(second.parameters(), 0.7)
    second.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    resumed.train()
    points = train(second, resumed, data[6:])
    assert torch.equal(points[-1], expected[-1])


@over_flavours
def test_loaded_state_is_not_shared(make):
    model = network()
    optimizer = make(model.parameters(), 0.7)
    train(model, optimizer, batches(4))
    twin = copy.deepcopy(model)
    second = make(twin.parameters(), 0.7)
    second.load_state_dict(optimizer.state_dict())
    data = batches(5, seed=2)
    expected = train(model, optimizer, data)
    assert torch.equal(train(twin, second, data)[-1], expected[-1])


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
@over_flavours
def test_copies_continue_alike(copier, make):
    model = network()
    optimizer = make(model.parameters(), 0.7, constraint=L2Ball(2.0))
    train(model, optimizer, batches(make.size + 1))
    twin, second = copier((model, optimizer))
    assert second.constraint == L2Ball(2.0)
    assert second.last_step == optimizer.last_step
    data = batches(make.size + 1, seed=2)
    assert torch.equal(train(twin, second, data)[-1], train(model, optimizer, data)[-1])


def test_load_restores_hyperparameters():
    model = network()
    optimizer = BORAT(model.parameters(), 0.7, 5, momentum=0.3, lower_bound=0.1)
    train(model, optimizer, batches(2))
    other = BORAT(network().parameters())
    other.load_state_dict(optimizer.state_dict())
    assert other.bundle_size == 5
    assert other.param_groups[0]["momentum"] == 0.3
    assert other.param_groups[0]["lower_bound"] == 0.1


@over_flavours
def test_distributed_checkpoint_helpers(make):
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    model = network()
    optimizer = make(model.parameters(), 0.7)
    before, lr = vector(model), optimizer.param_groups[0]["lr"]
    fresh = get_optimizer_state_dict(model, optimizer)
    assert torch.equal(vector(model), before)
    assert optimizer.bundle_position == 0
    assert optimizer.param_groups[0]["lr"] == lr
    assert all(p.grad is None for p in model.parameters())
    train(model, optimizer, batches(5))
    trained = get_optimizer_state_dict(model, optimizer)
    assert trained["state"].keys() == fresh["state"].keys()
    assert all(trained["state"][name].keys() == fresh["state"][name].keys() for name in fresh["state"])
    twin = copy.deepcopy(model)
    second = make(twin.parameters(), 0.1)
    set_optimizer_state_dict(twin, second, trained)
    data = batches(4, seed=2)
    assert torch.equal(train(twin, second, data)[-1], train(model, optimizer, data)[-1])


@over_flavours
def test_state_dict_helpers_of_a_fresh_optimizer_in_evaluation(make):
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model = network()
    optimizer = make(model.parameters())
    optimizer.eval()
    assert get_optimizer_state_dict(model, optimizer)["state"]


# Gradients


@over_flavours
def test_no_gradients_is_no_step(make):
    model = network()
    optimizer = make(model.parameters())
    before = vector(model)
    optimizer.step(loss=torch.tensor(1.0))
    assert torch.equal(vector(model), before)
    assert optimizer.bundle_position == 0
    assert optimizer.last_step is None
    train(model, optimizer, batches(1))
    optimizer.zero_grad()
    before = vector(model)
    optimizer.step(loss=torch.tensor(1.0))
    assert torch.equal(vector(model), before)
    assert optimizer.bundle_position == 1 % make.calls, "nor within a bundle"


@over_flavours
def test_parameters_without_gradients_stay_and_have_no_state(make):
    model = network()
    model[0].weight.requires_grad_(False)
    frozen = model[0].weight.clone()
    optimizer = make(model.parameters(), 1.0)
    train(model, optimizer, batches(2 * make.size))
    assert torch.equal(model[0].weight, frozen)
    assert model[0].weight not in optimizer.state


@pytest.mark.parametrize("bundle_size", [3, 5])
@pytest.mark.parametrize("first", [True, False])
def test_a_gradient_missing_in_some_pieces_is_zero(bundle_size, first):
    """A branch that only some batches use: None counts as zero."""

    def run(explicit_zero):
        torch.manual_seed(0)
        a, b = nn.Parameter(torch.randn(4).double()), nn.Parameter(torch.randn(3).double())
        optimizer = BORAT([a, b], 0.5, bundle_size)
        for i in range(4 * (bundle_size - 1)):
            optimizer.zero_grad()
            uses_b = (i % 2 == 0) == first
            loss = (a - i).square().sum() + (b + i).square().sum() * uses_b
            loss.backward()
            if not uses_b and not explicit_zero:
                b.grad = None
            optimizer.step(loss=loss)
        return torch.cat((a, b)).detach()

    torch.testing.assert_close(run(True), run(False), rtol=0, atol=1e-12)


@over_flavours
def test_sparse_gradients_equal_dense_ones(make):
    def run(sparse):
        torch.manual_seed(0)
        embedding = nn.Embedding(10, 4, sparse=sparse).double()
        optimizer = make(embedding.parameters(), 0.5)
        for i in range(12):
            optimizer.zero_grad()
            loss = (embedding(torch.tensor([i % 10, 3, 3])) - 1.0).square().mean()
            loss.backward()
            optimizer.step(loss=loss)
        return embedding.weight.detach()

    torch.testing.assert_close(run(True), run(False), rtol=0, atol=1e-14)


@over_flavours
def test_complex_parameters_equal_their_real_view(make):
    target = torch.randn(6, dtype=torch.complex128)
    z = nn.Parameter(torch.zeros(6, dtype=torch.complex128))
    x = nn.Parameter(torch.zeros(6, 2, dtype=torch.float64))
    for param, other in ((z, target), (x, torch.view_as_real(target))):
        optimizer = make([param], 0.3)
        for i in range(2 * make.size):
            optimizer.zero_grad()
            loss = (param - other * (1 + i % 3)).abs().square().sum()
            loss.backward()
            optimizer.step(loss=loss)
    torch.testing.assert_close(torch.view_as_real(z.detach()), x.detach(), rtol=0, atol=1e-12)


@over_flavours
def test_layouts_do_not_matter(make):
    """Channels-last weights, transposed parameters and gradients in another layout than their parameter."""

    def run(layout):
        torch.manual_seed(0)
        weight = nn.Parameter(layout(torch.randn(4, 3, 5, 5).double()))
        optimizer = make([weight], 0.5)
        for i in range(2 * make.size):
            gradient = torch.randn(4, 3, 5, 5).double()
            weight.grad = gradient if i % 2 else layout(gradient)
            optimizer.step(loss=torch.tensor(1.0))
        return weight.detach()

    expected = run(lambda w: w)
    padded = run(lambda w: torch.cat((w, w), dim=3)[..., :5])
    torch.testing.assert_close(run(lambda w: w.to(memory_format=torch.channels_last)), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        run(lambda w: w.transpose(0, 3).contiguous().transpose(0, 3)), expected, rtol=0, atol=1e-12
    )
    torch.testing.assert_close(padded, expected, rtol=0, atol=1e-12)


@over_flavours
def test_several_dtypes(make):
    params = [nn.Parameter(torch.ones(5, dtype=dtype)) for dtype in (torch.float64, torch.float32, torch.bfloat16)]
    exact = [nn.Parameter(torch.ones(5, dtype=torch.float64)) for _ in params]
    for group in (params, exact):
        optimizer = make(group, 0.1)
        for i in range(3 * make.size):
            optimizer.zero_grad()
            loss = sum((p.double() - i % 3).square().sum() for p in group)
            loss.backward()
            optimizer.step(loss=loss)
    for p, q, tolerance in zip(params, exact, (1e-2, 1e-2, 5e-2), strict=True):
        torch.testing.assert_close(p.double(), q, rtol=0, atol=tolerance)


def test_bfloat16_gram_is_computed_in_float32():
    w = nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))
    optimizer = ALIG([w], lr=1e9, momentum=0.0)
    w.grad = torch.full((1000,), 1.0078125, dtype=torch.bfloat16)
    optimizer.step(loss=torch.tensor(1.0))
    assert optimizer.last_step.step_norm == pytest.approx(1.0 / math.sqrt(1000 * 1.0078125**2), rel=1e-6)


def test_conjugated_gradients():
    c = torch.randn(3, dtype=torch.complex128)
    z = nn.Parameter(torch.ones(3, dtype=torch.complex128))
    (z.conj() * c).real.sum().backward()
    assert z.grad.is_conj()
    optimizer = ALIG([z], lr=0.1, momentum=0.0)
    optimizer.step(loss=1e9)
    torch.testing.assert_close(z.detach(), 1.0 - 0.1 * z.grad.resolve_conj())


# What may change under the optimizer


@over_flavours
@pytest.mark.parametrize("back", [False, True])
def test_state_loaded_into_another_memory_format(make, back):
    def weight(w, channels_last):
        form = torch.channels_last if channels_last else torch.contiguous_format
        return nn.Parameter(w.detach().clone(memory_format=form))

    def run(param, optimizer, steps):
        for i in steps:
            param.grad = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
            optimizer.step(loss=1.0)

    first = weight(torch.randn(4, 3, 2, 2, dtype=torch.float64), back)
    optimizer = make([first], 0.05)
    run(first, optimizer, range(make.size + 1))
    second = weight(first, not back)
    assert second.stride() != first.stride()
    resumed = make([second], 0.05)
    resumed.load_state_dict(optimizer.state_dict())
    for param, opt in ((first, optimizer), (second, resumed)):
        run(param, opt, range(20, 22 + make.size))
    torch.testing.assert_close(second, first, rtol=0, atol=1e-13)


@over_flavours
@pytest.mark.parametrize("whole", [False, True])
def test_state_that_a_trainer_rebuilds(make, whole):
    """Trainers move states between devices by writing them anew, nested dictionaries included."""

    def rebuilt(value):
        if isinstance(value, dict):
            return {key: rebuilt(v) for key, v in value.items()}
        return value.clone() if isinstance(value, torch.Tensor) else value

    data = batches(3 * make.size)
    model = network()
    plain = copy.deepcopy(model)
    expected = train(plain, make(plain.parameters(), 0.5), data)
    optimizer = make(model.parameters(), 0.5)
    for i, batch in enumerate(data):
        point = train(model, optimizer, [batch])[-1]
        assert torch.equal(point, expected[i])
        for p, state in list(optimizer.state.items()):
            if whole:
                optimizer.state[p] = rebuilt(state)
            else:
                state.update(rebuilt(state))
        assert optimizer.bundle_position == (i + 1) % make.calls


@over_flavours
def test_state_rebuilt_right_after_loading(make):
    """Before the first step, and in evaluation."""
    data = batches(9)
    model = network()
    plain = copy.deepcopy(model)
    expected = train(plain, make(plain.parameters(), 0.5), data)
    optimizer = make(model.parameters(), 0.5)
    train(model, optimizer, data[:2])
    optimizer.eval()
    resumed = make(model.parameters(), 0.5)
    resumed.load_state_dict(optimizer.state_dict())
    for state in resumed.state.values():
        for key, value in state.items():
            state[key] = dict(value) if isinstance(value, dict) else value
    resumed.train()
    assert torch.equal(train(model, resumed, data[2:])[-1], expected[-1])


@over_flavours
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_model_cast_in_the_middle_of_training(make, dtype):
    model = network(torch.float32)
    optimizer = make(model.parameters(), 0.1)
    train(model, optimizer, batches(make.size + 1, torch.float32))
    model.to(dtype)
    train(model, optimizer, batches(make.size + 1, dtype))
    assert vector(model).isfinite().all()
    for p in model.parameters():
        for key, tensor in optimizer.state[p].items():
            precise = torch.promote_types(dtype, torch.float32)
            assert not isinstance(tensor, torch.Tensor) or tensor.dtype == (precise if key == "rms" else dtype)


@pytest.mark.parametrize("bundle_size", [3, 4, 5])
def test_a_dropped_batch_does_not_bring_a_parameter_into_the_bundle(bundle_size):
    a, b = nn.Parameter(torch.zeros(2).double()), nn.Parameter(torch.ones(2).double())
    optimizer = BORAT([a, b], 100.0, bundle_size, momentum=0.0)

    def step(with_b, loss=1.0, i=0.0):
        a.grad = torch.tensor([1.0, i], dtype=torch.float64)
        b.grad = torch.tensor([1.0, 2.0], dtype=torch.float64) if with_b else None
        optimizer.step(loss=loss)

    for _ in range(bundle_size - 1):
        step(True)
    before = b.detach().clone()
    with pytest.warns(UserWarning, match="not finite"):
        step(True, math.nan)
    for i in range(bundle_size - 1):
        step(False, i=float(i))
    assert torch.equal(b, before)


def test_an_error_of_the_constraint_leaves_a_usable_optimizer():
    w = nn.Parameter(torch.ones(2))
    calls = iter([False, True, False, False, False])

    def constraint(params):
        if next(calls):
            raise ArithmeticError("no")

    optimizer = BORAT([w], 0.1, 3, constraint=constraint)
    w.grad = torch.ones(2)
    optimizer.step(loss=1.0)
    with pytest.raises(ArithmeticError):
        optimizer.step(loss=1.0)
    assert optimizer.bundle_position == 0
    optimizer.step(loss=1.0)
    assert optimizer.bundle_position == 1


def test_an_error_in_the_closure_forgets_the_bundle_of_its_batch():
    model = network()
    before = vector(model)
    optimizer = BORAT(model.parameters(), 0.5, 5, same_batch=True)
    calls = iter(range(10))

    def closure():
        if next(calls) == 2:
            raise ArithmeticError("no")
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    ((x, y),) = batches(1)
    with pytest.raises(ArithmeticError):
        optimizer.step(closure)
    assert optimizer.bundle_position == 0
    assert torch.equal(vector(model), before)
    optimizer.step(closure)
    assert optimizer.bundle_position == 0


@over_flavours
def test_enormous_gradients(make):
    w = nn.Parameter(torch.ones(2).double())
    optimizer = make([w], 0.1)
    for i in range(4 * make.size):
        w.grad = torch.full((2,), 1e100, dtype=torch.float64) * (1 + i)
        optimizer.step(loss=1.0)
    assert w.isfinite().all()
    assert optimizer.dropped_batches == 0


def test_a_gradient_too_long_for_lr_is_dropped():
    w = nn.Parameter(torch.ones(2).double())
    optimizer = BORAT([w], 1e12, 3)
    w.grad = torch.full((2,), 1e150, dtype=torch.float64)
    with pytest.warns(UserWarning, match="a gradient is not finite or too large"):
        optimizer.step(loss=1.0)
    assert w.tolist() == [1.0, 1.0]


@over_flavours
def test_flush_ends_an_evaluation(make):
    model = network()
    optimizer = make(model.parameters())
    optimizer.eval()
    optimizer.flush()
    optimizer.train()
    train(model, optimizer, batches(1))


# Groups and schedules


def test_groups_added_after_loading_are_like_the_loaded_ones():
    model = network()
    optimizer = BORAT(model[0].parameters(), 0.7, 5, lower_bound=0.2)
    with pytest.warns(UserWarning, match="lower_bound"):
        train(model, optimizer, batches(1), lambda loss: loss * 0.01)
    other = BORAT(network()[0].parameters())
    other.load_state_dict(optimizer.state_dict())
    other.add_param_group({"params": model[2].parameters()})
    assert [group["bundle_size"] for group in other.param_groups] == [5, 5]
    assert other.param_groups[1]["lower_bound"] == 0.2


def test_add_param_group_in_the_middle_of_a_bundle():
    model = network()
    optimizer = BORAT(model[0].parameters(), 0.7, 5)
    train(model, optimizer, batches(2))
    frozen = vector(model[2])
    optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.2, "momentum": 0.5})
    train(model, optimizer, batches(2))
    assert optimizer.bundle_position == 0
    assert optimizer.last_step.lr == (0.7, 0.0), "a new group joins with the next bundle"
    assert torch.equal(vector(model[2]), frozen)
    train(model, optimizer, batches(4))
    assert optimizer.last_step.lr == (0.7, 0.2)
    assert not torch.equal(vector(model[2]), frozen)


def test_tensor_lr_equals_a_number():
    data = batches(6)
    model = network()
    other = copy.deepcopy(model)
    expected = train(model, BORAT(model.parameters(), 0.5), data)
    points = train(other, BORAT(other.parameters(), torch.tensor(0.5)), data)
    assert torch.equal(points[-1], expected[-1])


def test_momentum_changed_by_a_schedule():
    model = network()
    optimizer = BORAT(model.parameters(), 0.5, 3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=20)
    for batch in batches(20):
        train(model, optimizer, [batch])
        scheduler.step()
        assert 0.0 < optimizer.param_groups[0]["lr"] <= 1.0
        assert 0.85 <= optimizer.param_groups[0]["momentum"] <= 0.95
    assert vector(model).isfinite().all()


# Non-finite and impossible values


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
@over_flavours
def test_non_finite_batches_leave_no_trace(bad, where, make):
    data = batches(2 * make.size)
    model = network()
    clean = copy.deepcopy(model)
    expected = train(clean, make(clean.parameters(), 1.0), data)
    optimizer = make(model.parameters(), 1.0)
    with pytest.warns(UserWarning, match="not finite") as record:
        for i, batch in enumerate(data):
            x, y = batch
            before = vector(model)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            if where == "gradient":
                next(model.parameters()).grad.view(-1)[3] = bad
            else:
                loss = loss * bad
            assert optimizer.step(loss=loss) is loss
            assert torch.equal(vector(model), before)
            assert optimizer.dropped_batches == i + 1
            assert torch.equal(train(model, optimizer, [batch])[-1], expected[i])
    assert len(record) == 1, "warned of once"


@over_flavours
def test_dropped_batches_are_part_of_the_state(make):
    model = network()
    optimizer = make(model.parameters())
    train(model, optimizer, batches(1))
    with pytest.warns(UserWarning, match="the loss nan is not finite"):
        optimizer.step(loss=math.nan)
        assert optimizer.dropped_batches == 1
    other = make(network().parameters())
    other.load_state_dict(optimizer.state_dict())
    assert other.dropped_batches == 1


def test_a_single_linear_piece_has_no_bound_to_fall_below():
    p = torch.nn.Parameter(torch.ones(2))
    optimizer = BORAT([p], 0.1, 1, momentum=0.0)
    p.grad = torch.ones(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step(loss=-3.0)
    torch.testing.assert_close(p.detach(), torch.full((2,), 0.9))


@pytest.mark.parametrize("bundle_size", [2, 3, 5])
def test_loss_below_the_bound_is_warned_of_once_and_never_climbs(bundle_size):
    w = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = BORAT([w], 1.0, bundle_size, lower_bound=100.0)
    with pytest.warns(UserWarning, match="below lower_bound=100") as record:
        for _ in range(2 * (bundle_size - 1)):
            optimizer.zero_grad()
            loss = w.square().sum()
            loss.backward()
            optimizer.step(loss=loss)
    assert len(record) == 1
    assert w.tolist() == [1.0, -2.0]
    assert optimizer.last_step.kind in ("ZERO", "B")


# Around it


@over_flavours
def test_grad_scaler(make):
    model = network(torch.float32)
    optimizer = make(model.parameters(), 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    for i, (x, y) in enumerate(batches(8, torch.float32)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        before, position = vector(model), optimizer.bundle_position
        if i == 3:
            next(model.parameters()).grad.view(-1)[0] = math.inf
        scaler.step(optimizer, loss=loss)
        scaler.update()
        if i == 3:
            assert torch.equal(vector(model), before)
            assert optimizer.bundle_position == position
    assert scaler.get_scale() == 2.0
    assert optimizer.dropped_batches == 0


@over_flavours
def test_observed_losses_add_up_until_a_bare_step(make):
    """Gradient accumulation under a trainer that calls step() without the loss equals the whole batch."""
    data = batches(8)
    model = network()
    other = copy.deepcopy(model)
    expected = train(model, make(model.parameters(), 0.5), data)
    optimizer = make(other.parameters(), 0.5)
    for x, y in data:
        optimizer.zero_grad()
        for half in (slice(0, 4), slice(4, 8)):
            loss = nn.functional.cross_entropy(other(x[half]), y[half]) / 2
            loss.backward()
            optimizer.observe(loss)
        optimizer.step()
    torch.testing.assert_close(vector(other), expected[-1], rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=r"observe\(loss\)"):
        optimizer.step()


def test_the_loss_of_a_skipped_step_is_forgotten_with_its_gradients():
    w = nn.Parameter(torch.ones(1))
    optimizer = ALIG([w], lr=1e9, momentum=0.0)
    optimizer.observe(100.0)
    optimizer.zero_grad()
    w.grad = torch.ones(1)
    optimizer.observe(0.25)
    assert optimizer.step() == 0.25


@over_flavours
def test_a_closure_may_skip_its_batch(make):
    model = network()
    optimizer = make(model.parameters())
    before = vector(model)
    assert optimizer.step(lambda: None) is None
    assert torch.equal(vector(model), before)


def test_observed_loss_goes_before_that_of_the_closure():
    w = nn.Parameter(torch.ones(1))
    optimizer = ALIG([w], lr=1e9, momentum=0.0)

    def closure():
        w.grad = torch.ones(1)
        optimizer.observe(0.25)
        return torch.tensor(100.0)

    assert optimizer.step(closure) == 0.25
    assert w.item() == 0.75


@over_flavours
def test_compiled_training_step(make):
    torch._dynamo.reset()  # or those of other tests count as recompilations of this one
    model = network(torch.float32)
    eager = copy.deepcopy(model)
    data = batches(6, torch.float32)
    expected = train(eager, make(eager.parameters(), 0.5), data)
    optimizer = make(model.parameters(), 0.5)
    compilations = 0

    def backend(graph, inputs):
        nonlocal compilations
        compilations += 1
        return graph.forward

    @torch.compile(backend=backend)
    def training_step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step(loss=loss)
        return loss

    for i, (x, y) in enumerate(data):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler looks at .grad of the loss, and silences that by itself
            training_step(x, y)
        if i == 2:
            warm = compilations
    torch.testing.assert_close(vector(model), expected[-1], rtol=1e-5, atol=1e-6)
    assert warm >= 1
    assert compilations == warm, "no recompilation from step to step"


def test_printing():
    text = repr(BORAT(network().parameters(), 0.5, 5))
    assert text.startswith("BORAT (")
    assert "bundle_size: 5" in text
    assert "lr: 0.5" in text
    assert repr(ALIG(network().parameters())).startswith("ALIG (")
    model = network()
    train(model, optimizer := FreeBORAT(model.parameters()), batches(2))
    optimizer.state_dict()
    text = repr(optimizer)
    assert "betas: (0.9, 0.99)" in text
    assert "at_origin" not in text, "the bundle's numbers are of no use to a reader"


def test_inference_of_the_loss_type():
    w = nn.Parameter(torch.ones(1))
    optimizer = ALIG([w])
    for loss in (2.0, 2, np.float32(2.0), torch.tensor(2.0), torch.tensor([[2.0]], dtype=torch.bfloat16)):
        w.grad = torch.ones(1)
        assert optimizer.step(loss=loss) is loss


def test_constraint_is_any_callable():
    calls = []
    w = nn.Parameter(torch.ones(2))
    optimizer = BORAT([w], constraint=lambda params: calls.append([p is w for p in params]))
    for _ in range(4):
        w.grad = torch.ones(2)
        optimizer.step(loss=1.0)
    assert calls == [[True]] * 3, "once at construction and once for each update"


@over_flavours
def test_no_warnings_in_normal_use(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = network()
        train(model, make(model.parameters()), batches(4))


# Rejected arguments


def step_without(**arguments):
    model = network()
    train(model, optimizer := BORAT(model.parameters(), 0.1), batches(1))
    optimizer.step(**arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: BORAT(p, lr=-0.1), r"lr must be a number of at least 0, got -0\.1"),
        (lambda p: BORAT(p, lr=math.nan), "lr must be a number of at least 0, got nan"),
        (lambda p: BORAT(p, lr="fast"), "lr must be a number of at least 0, got 'fast'"),
        (lambda p: BORAT(p, lr=torch.ones(2)), r"lr must be a number or a tensor with one element, got .* \(2,\)"),
        (lambda p: BORAT(p, lr=torch.tensor(1j)), "lr must be a real number, got tensor"),
        (lambda p: BORAT(p, lr=None), "lr must be finite unless bundle_size is 2, got inf with bundle_size=3"),
        (lambda p: BORAT(p, bundle_size=0), "bundle_size must be an integer of at least 1, got 0"),
        (lambda p: BORAT(p, bundle_size=2.5), r"bundle_size must be an integer of at least 1, got 2\.5"),
        (lambda p: BORAT(p, bundle_size=True), "bundle_size must be an integer of at least 1, got True"),
        (lambda p: BORAT(p, momentum=1.0), r"momentum must be a number in \[0, 1\), got 1\.0"),
        (lambda p: BORAT(p, momentum=-0.1), r"momentum must be a number in \[0, 1\), got -0\.1"),
        (lambda p: BORAT(p, momentum=None), r"momentum must be a number in \[0, 1\), got None"),
        (lambda p: BORAT(p, lower_bound=math.inf), "lower_bound must be a finite number, got inf"),
        (lambda p: BORAT(p, lower_bound=None), "lower_bound must be a finite number, got None"),
        (lambda p: BORAT(p, constraint=3), "constraint must be None or a callable on a list of parameters, got 3"),
        (lambda p: BORAT(p, same_batch=1), "same_batch must be True or False, got 1"),
        (lambda p: BORAT(p, reduce_loss=None), "reduce_loss must be True or False, got None"),
        (lambda p: FreeBORAT(p, 1), "bundle_size must be an integer of at least 2, got 1"),
        (lambda p: FreeBORAT(p, 2.0), r"bundle_size must be an integer of at least 2, got 2\.0"),
        (lambda p: FreeBORAT(p, lr=-1.0), r"lr must be a number of at least 0, got -1\.0"),
        (lambda p: FreeBORAT(p, lr=None), "lr must be a number of at least 0, got None"),
        (lambda p: FreeBORAT(p, lr=math.inf), "lr must be finite, got inf"),
        (lambda p: FreeBORAT(p, betas=(0.0, 0.9)), r"betas must be in \(0, 1\) and \[0, 1\), got \(0\.0, 0\.9\)"),
        (lambda p: FreeBORAT(p, betas=(0.9, 1.0)), r"betas must be in \(0, 1\) and \[0, 1\), got \(0\.9, 1\.0\)"),
        (lambda p: FreeBORAT(p, betas=0.9), r"betas must be two numbers, got 0\.9"),
        (lambda p: FreeBORAT(p, betas=(0.9, math.nan)), r"betas must be two numbers, got \(0\.9, nan\)"),
        (lambda p: FreeBORAT(p, aim=0.0), r"aim must be a number in \(0, 1\], got 0\.0"),
        (lambda p: FreeBORAT(p, aim=1.5), r"aim must be a number in \(0, 1\], got 1\.5"),
        (lambda p: FreeBORAT(p, aim="half"), r"aim must be a number in \(0, 1\], got 'half'"),
        (lambda p: FreeBORAT(p, weight_decay=-0.1), r"weight_decay must be a finite number of at least 0, got -0\.1"),
        (lambda p: FreeBORAT(p, eps=0.0), r"eps must be a positive, finite number, got 0\.0"),
        (lambda p: FreeBORAT(p, lower_bound=math.nan), "lower_bound must be a finite number, got nan"),
        (lambda p: FreeBORAT(p, constraint=3), "constraint must be None or a callable .*, got 3"),
        (lambda p: FreeBORAT(p, reduce_loss=1), "reduce_loss must be True or False, got 1"),
        (
            lambda p: FreeBORAT([{"params": p[:1]}, {"params": p[1:], "aim": 0.7}]),
            "aim must be the same for all .* 0.7",
        ),
        (lambda p: BORAT(p).observe(None), "loss must be a number or a tensor with one element, got None"),
        (lambda p: BORAT([]), "empty parameter list"),
        (lambda p: BORAT([{"params": p, "lr": -1.0}]), r"lr must be a number of at least 0, got -1\.0"),
        (lambda p: BORAT([{"params": p, "bundle_size": 5}]), "bundle_size must be the same for all .*, got 5"),
        (lambda p: BORAT([{"params": p, "lower_bound": 5}]), "lower_bound must be the same for all .*, got 5"),
        (lambda p: ALIG([{"params": p[:1]}, {"params": p[1:], "lr": None}]), "lr must be None for all .* or for none"),
        (lambda p: ALIG(p, lr=-1.0), r"lr must be a number of at least 0, got -1\.0"),
        (lambda p: step_without(), r"step needs the loss.*step\(loss=loss\).*step\(closure\).*step\(lambda: loss\)"),
        (
            lambda p: step_without(closure=torch.tensor(1.0)),
            r"closure must be callable, got a Tensor.*step\(loss=loss\)",
        ),
        (lambda p: step_without(closure=lambda: 1.0, loss=1.0), "either a closure or the loss, got both"),
        (lambda p: step_without(closure=lambda: None), "loss must be a number or a tensor with one element, got None"),
        (lambda p: step_without(loss=torch.ones(2)), r"loss must have one element, got a tensor of shape \(2,\)"),
        (lambda p: step_without(loss=torch.tensor(1j)), "loss must be a number or a tensor with one element, got"),
        (lambda p: step_without(loss="1.0"), "loss must be a number or a tensor with one element, got '1.0'"),
    ],
)
def test_rejects(make, message):
    with pytest.raises(ValueError, match=message):
        make(list(network().parameters()))


@pytest.mark.parametrize(("key", "value"), [("lr", -1.0), ("lr", math.nan), ("momentum", 1.5), ("momentum", None)])
def test_rejects_impossible_values_from_a_schedule(key, value):
    model = network()
    optimizer = BORAT(model.parameters())
    train(model, optimizer, batches(1))
    optimizer.param_groups[0][key] = value
    with pytest.raises(ValueError, match=f"{key} must be a number"):
        train(model, optimizer, batches(1))
    optimizer.param_groups[0][key] = 0.5
    train(model, optimizer, batches(1))
    assert optimizer.bundle_position == 0


def test_rejects_a_group_that_is_no_dict():
    with pytest.raises(TypeError, match="param_group must be a dict, got list"):
        BORAT(network().parameters()).add_param_group([torch.ones(1)])


def test_alig_rejects_the_state_of_a_larger_bundle():
    with pytest.raises(ValueError, match="bundle_size must be 2 for ALIG, got a state with 5"):
        ALIG(network().parameters()).load_state_dict(BORAT(network().parameters(), 0.1, 5).state_dict())


def test_alig_has_a_bundle_of_two():
    assert ALIG(network().parameters()).bundle_size == 2
    with pytest.raises(TypeError):
        ALIG(network().parameters(), bundle_size=3)
