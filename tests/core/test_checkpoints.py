"""Checkpoints of earlier versions go on as they did, and those of others are refused before anything changes."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from borat import ALIG, BORAT, FreeBORAT
from borat.constraints import L2Ball
from flavours import over_flavours
from problems import batches, network, train

OLD = torch.load(Path(__file__).with_name("checkpoints-0.1.0.pt"), weights_only=True)


@pytest.mark.parametrize("case", OLD["cases"])
def test_version_0_1_0(case):
    """Two groups, a constraint, after six batches: within a bundle or not, for training or in evaluation."""
    saved = OLD["cases"][case]
    model = network()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    optimizer = BORAT(groups, 0.1, int(case.split("-")[0]), constraint=L2Ball(2.2))
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    optimizer.train()
    assert [group["lr"] for group in optimizer.param_groups] == [0.7, 0.3]
    torch.testing.assert_close(torch.stack(train(model, optimizer, OLD["data"])), saved["after"], rtol=0, atol=1e-12)


def states(model: nn.Module):
    """State dicts that are none of ours, or not for this model."""
    params = [p.detach().clone().requires_grad_() for p in model.parameters()]
    yield "an SGD's", torch.optim.SGD(params, 0.1, momentum=0.9).state_dict()
    yield "an Adam's", torch.optim.Adam(params).state_dict()
    wide = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    for cls in (BORAT, FreeBORAT):
        train(wide, optimizer := cls(wide.parameters(), bundle_size=5), batches(2))
        yield f"another model's {cls.__name__}", optimizer.state_dict()


@over_flavours
def test_the_state_of_another_optimizer_is_refused_and_changes_nothing(make):
    data = batches(8)
    for name, state in states(network()):
        torch.manual_seed(0)
        model = network()
        twin = copy.deepcopy(model)
        optimizer, other = make(model.parameters()), make(twin.parameters())
        train(model, optimizer, data[:3])
        train(twin, other, data[:3])
        with pytest.raises(ValueError, match="state_dict must"):
            optimizer.load_state_dict(state)
        assert torch.equal(train(model, optimizer, data[3:])[-1], train(twin, other, data[3:])[-1]), name


def test_borat_and_free_borat_do_not_load_each_other():
    model = network()
    for one, other in ((BORAT, FreeBORAT), (FreeBORAT, BORAT), (ALIG, FreeBORAT)):
        with pytest.raises(ValueError, match=f"state_dict must be the state of a {one.__name__}"):
            one(model.parameters()).load_state_dict(other(model.parameters()).state_dict())


def test_bundles_numbers_that_do_not_fit():
    model = network()
    train(model, optimizer := FreeBORAT(model.parameters(), 5), batches(6))
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0]["bundle"]["at_origin"] = [1.0]
    with pytest.raises(ValueError, match="at_origin must have 3 values"):
        optimizer.load_state_dict(state)


@over_flavours
def test_a_state_dict_is_a_snapshot_of_the_numbers(make):
    """The bundle's numbers in an earlier state dict do not change as the training goes on."""
    model = network()
    train(model, optimizer := make(model.parameters()), batches(2))
    first = optimizer.state_dict()["param_groups"][0]["bundle"]
    kept = copy.deepcopy(first)
    train(model, optimizer, batches(3))
    assert first == kept
    assert optimizer.state_dict()["param_groups"][0]["bundle"] != kept


@over_flavours
def test_groups_of_another_optimizer_can_be_taken_over(make):
    """Some tools build an optimizer from the groups of one that has been used; its bundle is not theirs."""
    model = network()
    train(model, optimizer := make(model.parameters()), batches(2))
    optimizer.state_dict()
    other = make([dict(group) for group in optimizer.param_groups])
    assert other.dropped_batches == 0
    train(model, other, batches(2))


def test_a_polyak_step_is_called_alig():
    w = nn.Parameter(torch.tensor([3.0, -4.0], dtype=torch.float64))
    optimizer = ALIG([w], lr=None, momentum=0.0)
    for _ in range(3):
        optimizer.zero_grad()
        loss = w.square().sum()
        loss.backward()
        optimizer.step(loss=loss)
        assert optimizer.last_step.kind == "ALIG"
        assert optimizer.last_step.step_size == pytest.approx(0.25)
    w.grad = torch.ones(2, dtype=torch.float64)
    optimizer.step(loss=-0.0)
    assert optimizer.last_step.step_norm == 0.0
