"""Unusual situations: foreign states, losses of skipped steps, parameters on the meta device."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from borat import ALIG, BORAT, FreeBORAT
from borat.constraints import L2Ball
from problems import batches, network, train

OURS = {"BORAT": BORAT, "BORAT5": partial(BORAT, bundle_size=5), "ALIG": ALIG, "FreeBORAT": FreeBORAT}
every_optimizer = pytest.mark.parametrize("make", OURS.values(), ids=OURS)


def trained(make, model):
    """Return an optimizer in the middle of a bundle, if it has bundles."""
    optimizer = make(model.parameters())
    train(model, optimizer, batches(6))
    return optimizer


def foreign_states(make):
    """Yield states that do not fit this optimizer on ``network()``, and the expected errors."""
    model = network()
    for other in (
        torch.optim.SGD(model.parameters(), momentum=0.9),
        torch.optim.Adam(model.parameters()),
        FreeBORAT(model.parameters(), bundle_size=2) if make is not FreeBORAT else BORAT(model.parameters()),
    ):
        train_plainly(model, other)
        yield other.state_dict(), "state_dict must be the state of a "
    larger = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    fitting = make(larger.parameters())
    for x, y in batches(6):
        fitting.zero_grad()
        loss = nn.functional.cross_entropy(larger(torch.cat([x, x[:, :1]], 1)), y)
        loss.backward()
        fitting.step(loss=loss)
    yield fitting.state_dict(), r"state_dict must fit the parameters.*parameter 0 must have the shape .*7"
    fewer = make(model[0].parameters())
    yield fewer.state_dict(), "parameter group that doesn't match the size"


def train_plainly(model, optimizer):
    (x, y), *_ = batches(1)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step(lambda: loss)


@every_optimizer
@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("case", range(5), ids=["SGD", "Adam", "ours", "shapes", "parameters"])
def test_a_foreign_state_is_refused_and_changes_nothing(make, capturable, case):
    state, message = list(foreign_states(make))[case]
    make = partial(make, capturable=capturable)
    model = network()
    optimizer = trained(make, model)
    twin_model = copy.deepcopy(model)
    twin = make(twin_model.parameters())
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(state)
    assert torch.equal(parameters_to_vector(model.parameters()), parameters_to_vector(twin_model.parameters()))
    after = train(model, optimizer, batches(9, seed=2))
    for ours, twins in zip(after, train(twin_model, twin, batches(9, seed=2)), strict=True):
        assert torch.equal(ours, twins), "the failed load has no effect"


def damaged_states(state):
    """Yield damaged states, such as from a file that was assembled by hand."""
    first, *others = state["param_groups"]
    yield None
    yield {}
    yield {"model": {}, "optimizer": state}
    yield {**state, "param_groups": []}
    yield {"param_groups": state["param_groups"]}
    yield {**state, "param_groups": [{k: v for k, v in first.items() if k != "params"}, *others]}
    for key in first["bundle"]:
        numbers = {k: v for k, v in first["bundle"].items() if k != key}
        yield {**state, "param_groups": [{**first, "bundle": numbers}, *others]}
    for name, value in state["state"][1].items():
        if isinstance(value, torch.Tensor):
            without = {k: v for k, v in state["state"][1].items() if k != name}
            yield {**state, "state": {**state["state"], 1: without}}
            yield {**state, "state": {**state["state"], 1: {**without, name: value[..., :-1]}}}
            yield {**state, "state": {**state["state"], 1: {**without, name: 1.0}}}


@every_optimizer
@pytest.mark.parametrize("capturable", [False, True])
def test_a_damaged_state_is_refused_and_changes_nothing(make, capturable):
    model = network()
    optimizer = make(model.parameters(), capturable=capturable)
    train(model, optimizer, batches(7))
    weights, before = parameters_to_vector(model.parameters()), copy.deepcopy(optimizer.state_dict())
    cases = [*damaged_states(before)]
    if before["state"][0].get("active"):  # the bundle continues with gradients
        cases.append({**before, "state": {}})
    for case in cases:
        with pytest.raises(ValueError, match=r"state_dict must|doesn't match"):
            optimizer.load_state_dict(copy.deepcopy(case))
        assert torch.equal(weights, parameters_to_vector(model.parameters()))
        assert_same(optimizer.state_dict(), before)
    train(model, optimizer, batches(2))


def assert_same(found, expected):
    assert found["param_groups"] == expected["param_groups"]
    for key, state in expected["state"].items():
        torch.testing.assert_close(found["state"][key], state, rtol=0.0, atol=0.0)


def observe(model, optimizer, batch, *, factor=1.0):
    x, y = batch
    loss = factor * nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.observe(loss)


@every_optimizer
@pytest.mark.parametrize("zero_grad", ["model", "optimizer", "optimizer, kept"])
def test_the_observed_loss_of_a_skipped_step_is_discarded(make, zero_grad):
    skipped, first, second = batches(3)
    model = network()
    twin_model = copy.deepcopy(model)
    optimizer, twin = make(model.parameters()), make(twin_model.parameters())
    observe(model, optimizer, skipped)
    if zero_grad == "model":
        model.zero_grad()
    else:
        optimizer.zero_grad(set_to_none=zero_grad == "optimizer")
    for batch in (first, second):
        observe(model, optimizer, batch)
        observe(twin_model, twin, batch)
        assert float(optimizer.step()) == float(twin.step()), "the loss of this batch only"
        model.zero_grad()
        twin_model.zero_grad()
    assert torch.equal(parameters_to_vector(model.parameters()), parameters_to_vector(twin_model.parameters()))


@pytest.fixture
def _parameters_stay_the_same():
    """Keep the parameters of a model when it is materialised, since the optimizer refers to them."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@every_optimizer
@pytest.mark.usefixtures("_parameters_stay_the_same")
def test_meta_parameters_are_projected_once_materialised(make):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    optimizer = make(model.parameters(), constraint=L2Ball(1.0))
    model.to_empty(device="cpu")
    model.load_state_dict({name: 10.0 * weight for name, weight in network(torch.float32).state_dict().items()})
    assert parameters_to_vector(model.parameters()).norm() > 2.0
    train(model, optimizer, batches(1, torch.float32))
    optimizer.eval()
    assert parameters_to_vector(model.parameters()).norm() <= 1.0 + 1e-5
