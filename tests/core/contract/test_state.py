"""The state is lazy, complete and exact when saved, loaded, copied or rebuilt, at every position of a bundle."""

from __future__ import annotations

import copy
import io
import math
import pickle
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import Parameter
from torch.testing import assert_close

from borat import BORAT
from borat.constraints import L2Ball
from flavours import over_classes, over_flavours, over_options
from problems import batches, network, train, vector
from regression import assert_same, fresh, run, take, values


def through_disk(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


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


@over_options()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resumes_at_every_position_of_the_bundle(cls, options, dtype):
    params, points = fresh(dtype), run(cls, options, fresh(dtype))
    opt = cls(params, **options)
    for t in range(opt.bundle_size + 1):
        weights, state = through_disk((params, opt.state_dict()))
        kept = copy.deepcopy(state)
        resumed = fresh(dtype)
        other = cls(zip("wb", resumed, strict=True) if t % 2 else resumed, **options)  # with names and without
        for _ in range(2):  # the second time into a used optimizer
            other.load_state_dict(state)
            torch._foreach_copy_([p.data for p in resumed], weights)
            assert other.bundle_position == opt.bundle_position
            assert_same(other.state_dict()["state"], opt.state_dict()["state"])
            assert_same(take(other, resumed, range(t, 12)), points[2 * t :])
            assert_same(state, kept)
        take(opt, params, [t])


@over_classes
def test_resumes_on_weights_that_were_loaded_before_it_was_built(cls):
    build = partial(cls, lr=0.5, constraint=L2Ball(0.8))  # at the boundary, so that trial points are outside the set
    for t in range(6):
        params = fresh()
        opt = build(params)
        take(opt, params, range(t))
        resumed = [Parameter(x) for x in values(params)]
        other = build(resumed)
        other.load_state_dict(opt.state_dict())
        assert_close(take(other, resumed, range(t, 12)), take(opt, params, range(t, 12)), rtol=1e-5, atol=1e-5)


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
def test_flush_ends_an_evaluation(make):
    model = network()
    optimizer = make(model.parameters())
    optimizer.eval()
    optimizer.flush()
    optimizer.train()
    train(model, optimizer, batches(1))


@over_options()
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_copies_continue_the_same_trajectory(cls, options, copied):
    params = fresh()
    opt = cls(params, **options)
    copies = []
    for t in range(opt.bundle_size + 1):
        copies.append(copied((params, opt)))
        for name in vars(opt).keys() - {"state", "param_groups", "defaults"}:
            assert name.startswith("_") or getattr(copies[-1][1], name) == getattr(opt, name)
        assert repr(copies[-1][1]) == repr(opt)
        assert copies[-1][1].last_step == opt.last_step
        take(opt, params, [t])
    points = run(cls, options, fresh())
    for t, (twin, other) in enumerate(copies):
        assert_same(take(other, twin, range(t, 12)), points[2 * t :])


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
    """Trainers move states between devices by rebuilding them, including nested dictionaries."""

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


@over_classes
def test_state_dict_hooks(cls):
    params, calls = fresh(), []
    opt = cls(params)
    opt.register_state_dict_pre_hook(lambda given: calls.append(("pre", given is opt)))
    opt.register_state_dict_pre_hook(lambda given: take(given, params, [0]), prepend=True)
    opt.register_state_dict_post_hook(lambda given, state: calls.append(("post", len(state["state"]))))
    opt.register_state_dict_post_hook(lambda given, state: {**state, "extra": 1})
    assert opt.state_dict()["extra"] == 1
    assert calls == [("pre", True), ("post", 2)]


@over_classes
@pytest.mark.parametrize("taken", [0, 2])
def test_load_state_dict_hooks(cls, taken):
    (params, twin), calls = (fresh(), fresh()), []
    opt, other = cls(params), cls(twin)
    take(opt, params, range(3))
    take(other, twin, range(taken))
    state, own = opt.state_dict(), other.state_dict()
    torch._foreach_copy_([p.data for p in twin], values(params))
    other.register_load_state_dict_pre_hook(lambda _, given: calls.append(("replace", given["param_groups"])) or state)
    other.register_load_state_dict_pre_hook(lambda _, given: calls.append(("pre", given["state"])))
    other.register_load_state_dict_post_hook(lambda given: calls.append(("post", given.bundle_position)))
    other.load_state_dict(own)
    assert calls == [("replace", own["param_groups"]), ("pre", state["state"]), ("post", opt.bundle_position)]
    assert_same(take(other, twin, range(3, 9)), take(opt, params, range(3, 9)))
