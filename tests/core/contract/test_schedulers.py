"""torch's learning-rate schedulers and averaged models beside the optimizer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from borat import BORAT
from problems import batches, network, train

SCHEDULERS = {
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=2.0, total_steps=12),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=12),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "ReduceLROnPlateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, threshold=0.5),
}


def advance(scheduler):
    plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
    scheduler.step(*([1.0] if plateau else []))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_bundle_takes_the_rate_at_its_opening(name):
    """The same as an optimizer whose rate is written by hand; rates written within a bundle have no effect."""
    model, data = network(), batches(12)
    twin = copy.deepcopy(model)
    optimizer = BORAT(model.parameters(), lr=1.0)
    by_hand = BORAT(twin.parameters(), lr=1.0)
    scheduler = SCHEDULERS[name](optimizer)
    rates = []
    for step, batch in enumerate(data):
        if step % 2 == 0:
            rates.append(optimizer.param_groups[0]["lr"])
            by_hand.param_groups[0]["lr"] = rates[-1]
        by_hand.param_groups[0]["momentum"] = optimizer.param_groups[0]["momentum"]  # OneCycleLR cycles it too
        train(model, optimizer, [batch])
        train(twin, by_hand, [batch])
        if step % 2 == 1:
            assert optimizer.last_step.lr == rates[-1]
        advance(scheduler)
    assert len(set(rates)) > 1, "the scheduler changed the rate"
    assert torch.equal(parameters_to_vector(model.parameters()), parameters_to_vector(twin.parameters()))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_scheduler_and_optimizer_resume_within_a_bundle(name):
    model, data = network(), batches(11)
    optimizer = BORAT(model.parameters(), lr=1.0)
    scheduler = SCHEDULERS[name](optimizer)
    for batch in data[:5]:
        train(model, optimizer, [batch])
        advance(scheduler)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), scheduler.state_dict()])
    ends = []
    for resumed in (False, True):
        if resumed:
            model = network()
            optimizer = BORAT(model.parameters(), lr=1.0)
            scheduler = SCHEDULERS[name](optimizer)
            for each, state in zip((model, optimizer, scheduler), saved, strict=True):
                each.load_state_dict(state)
        for batch in data[5:]:
            train(model, optimizer, [batch])
            advance(scheduler)
        ends.append(parameters_to_vector(model.parameters()))
    assert torch.equal(*ends)


@pytest.mark.parametrize("average", ["SWA", "EMA"])
def test_averages_of_the_centres(average):
    """Between eval() and train(), an averaged model sees the centres alone, and the training does not notice."""
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
    assert torch.equal(parameters_to_vector(model.parameters()), after)


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
