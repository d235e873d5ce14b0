"""Parameter groups, torch's learning-rate schedulers and its averaged models."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.testing import assert_close

from borat import ALIG, BORAT, FreeBORAT
from flavours import has_cap, over_classes, over_options
from problems import batches, network, train, vector
from regression import assert_same, fresh, run, take, total_loss, values


def warm_up_and_decay(opt):
    return [lr_scheduler.LinearLR(opt), lr_scheduler.ExponentialLR(opt, gamma=0.95)]


SCHEDULERS = {
    "step": lambda opt: lr_scheduler.StepLR(opt, step_size=4, gamma=0.7),
    "exponential": lambda opt: lr_scheduler.ExponentialLR(opt, gamma=0.95),
    "lambda": lambda opt: lr_scheduler.LambdaLR(opt, lambda t: 1.0 / (1.0 + 0.1 * t)),
    "cosine": lambda opt: lr_scheduler.CosineAnnealingLR(opt, T_max=20),
    "one cycle": lambda opt: lr_scheduler.OneCycleLR(opt, max_lr=0.5, total_steps=25, cycle_momentum=False),
    "one cycle, momentum": lambda opt: lr_scheduler.OneCycleLR(opt, max_lr=0.5, total_steps=25),
    "plateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=3, factor=0.7),
    "chained": lambda opt: lr_scheduler.ChainedScheduler(warm_up_and_decay(opt)),
    "sequential": lambda opt: lr_scheduler.SequentialLR(opt, warm_up_and_decay(opt), milestones=[5]),
}


def advance(scheduler):
    plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
    scheduler.step(*([1.0] if plateau else []))


@over_options(lambda options: has_cap(options) and "constraint" not in options, of=(BORAT, ALIG))
def test_lr_of_a_group_is_a_change_of_variables(cls, options):
    """A group with the lr c²η moves like a group with the lr η whose parameters are scaled by c."""
    c, lr, params, units = 0.5, 0.4, fresh(torch.float64), fresh(torch.float64)
    units[1].data /= c
    opt = cls([{"params": params[0]}, {"params": params[1], "lr": c * c * lr}], **{**options, "lr": lr})
    expected = run(cls, {**options, "lr": lr}, units, view=lambda ps: [ps[0], c * ps[1]])
    assert_close(take(opt, params, range(12)), expected)


@over_options(lambda options: has_cap(options))
def test_parameter_may_move_to_a_group_of_its_own(cls, options):
    params, twin = fresh(torch.float64), fresh(torch.float64)
    opt, other = cls(params, **options), cls([{"params": [p]} for p in twin], **options)
    for optimizer, own in ((opt, params), (other, twin)):
        take(optimizer, own, range(6))
        optimizer.flush()
    opt.param_groups[0]["params"].pop()
    opt.add_param_group({"params": params[1:], "lr": 1e-3})
    other.param_groups[1]["lr"] = 1e-3
    assert_close(take(opt, params, range(6, 12)), take(other, twin, range(6, 12)))


@over_options(lambda options: has_cap(options) and "constraint" not in options, of=(BORAT, ALIG))
def test_group_that_comes_late_had_no_lr_before(cls, options):
    for start in range(options.get("bundle_size", 3) + 1):
        params, twin = fresh(torch.float64), fresh(torch.float64)
        opt = cls(params[:1], **options)
        other = cls([{"params": twin[0]}, {"params": twin[1], "lr": 0.0}], **options)
        assert_close(take(opt, params, range(start)), take(other, twin, range(start)))
        opt.add_param_group({"params": params[1:], "lr": 0.3})
        other.param_groups[1]["lr"] = 0.3
        assert_close(take(opt, params, range(start, start + 20)), take(other, twin, range(start, start + 20)))
        assert not torch.equal(params[1], fresh(torch.float64)[1])


@over_classes
def test_group_can_be_added_after_the_state_was_read(cls):
    params, twin = fresh(), fresh()
    opt = cls(params[:1])
    assert not opt.state[params[0]]  # a defaultdict: this creates an entry
    opt.add_param_group({"params": params[1:]})
    assert_same(take(opt, params, range(4)), take(cls([{"params": p} for p in twin]), twin, range(4)))


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


@pytest.mark.filterwarnings("ignore:The epoch parameter in .scheduler.step")  # from SequentialLR, up to PyTorch 2.6
@over_classes
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(cls, name):
    points = []
    start, goal = (1.0, 1.0) if cls is FreeBORAT else (0.2, 0.2)  # FreeBORAT is still in its start after 24 batches
    for lr in (start, torch.tensor(start, dtype=torch.float64)):
        params, rates, momenta = fresh(), set(), set()
        before = total_loss(params)
        opt = cls(params, lr=lr) if cls is FreeBORAT else cls(params, lr=lr, momentum=0.5)
        sgd = torch.optim.SGD(fresh(), lr=copy.deepcopy(lr), momentum=0.5)
        scheduler, group = SCHEDULERS[name](opt), opt.param_groups[0]
        of_sgd, theirs = SCHEDULERS[name](sgd), sgd.param_groups[0]
        for t in range(24):
            if opt.bundle_position == 0:
                opened_with = float(group["lr"])
            take(opt, params, [t])
            assert opt.bundle_position or opt.last_step.lr == opened_with
            sgd.step()
            for each in (scheduler, of_sgd):
                advance(each)
            assert type(group["lr"]) is type(theirs["lr"])
            assert group["lr"] == theirs["lr"]
            rates.add(float(group["lr"]))
            momenta.add(group["betas"][0] if cls is FreeBORAT else group["momentum"])
        assert len(rates) > 3
        assert (len(momenta) > 3) == (name == "one cycle, momentum")
        opt.eval()
        assert total_loss(params) < goal * before
        points.append(values(params))
    if name != "sequential" or not torch.__version__.startswith("2.6."):  # it changes a tensor rate in place
        assert_close(*points, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The epoch parameter in .scheduler.step")
@over_classes
@pytest.mark.parametrize("name", SCHEDULERS)
def test_scheduler_and_optimizer_resume_within_a_bundle(cls, name):
    def build():
        model = network()
        optimizer = cls(model.parameters(), lr=1.0)
        return model, optimizer, SCHEDULERS[name](optimizer)

    def go_on(model, optimizer, scheduler, data):
        for batch in data:
            train(model, optimizer, [batch])
            advance(scheduler)
        return vector(model)

    first, second, data = build(), build(), batches(11)
    go_on(*first, data[:5])
    for each, saved in zip(second, first, strict=True):
        each.load_state_dict(copy.deepcopy(saved.state_dict()))
    assert torch.equal(go_on(*second, data[5:]), go_on(*first, data[5:]))


@pytest.mark.parametrize("average", ["SWA", "EMA"])
def test_averages_of_the_centres(average):
    """Between eval() and train(), an averaged model sees only centres, and training is not affected."""
    model, data = network(), batches(9)
    twin, centres = copy.deepcopy(model), []
    reference = BORAT(twin.parameters(), lr=1.0)
    for batch in data:
        if reference.bundle_position == 0:
            centre = parameters_to_vector(twin.parameters()).detach()
        (after,) = train(twin, reference, [batch])
        centres.append(centre if reference.bundle_position else after)

    optimizer = BORAT(model.parameters(), lr=1.0)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5) if average == "EMA" else None)
    for batch in data:
        train(model, optimizer, [batch])
        optimizer.eval()
        averaged.update_parameters(model)
        optimizer.train()

    weights = [0.5**8] + [0.5 ** (9 - n) for n in range(1, 9)] if average == "EMA" else [1 / 9] * 9
    expected = sum(weight * centre for weight, centre in zip(weights, centres, strict=True))
    torch.testing.assert_close(parameters_to_vector(averaged.parameters()).detach(), expected, rtol=0, atol=1e-12)
    assert torch.equal(vector(model), after)


def test_batch_norm_of_the_averaged_model():
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3)).double()
    optimizer = BORAT(model.parameters(), lr=1.0)
    averaged = AveragedModel(model)
    for batch in batches(6):
        train(model, optimizer, [batch])
        if optimizer.bundle_position == 0:
            averaged.update_parameters(model)
    update_bn(batches(6), averaged)
    hidden = torch.cat([averaged.module[0](x) for x, _ in batches(6)])
    torch.testing.assert_close(averaged.module[1].running_mean, hidden.mean(0))
