"""State dicts are snapshots; loading one that does not fit changes nothing."""

from __future__ import annotations

import copy

import pytest

from borat import FreeBORAT
from flavours import over_flavours
from problems import batches, network, train


def test_bundles_numbers_that_do_not_fit():
    model = network()
    train(model, optimizer := FreeBORAT(model.parameters(), 5), batches(6))
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0]["bundle"]["at_origin"] = [1.0]
    with pytest.raises(ValueError, match=r"at_origin must have the shape \(3,\)"):
        optimizer.load_state_dict(state)


@over_flavours
def test_a_state_dict_is_a_snapshot_of_the_numbers(make):
    """The bundle's numbers in an earlier state dict do not change during further training."""
    model = network()
    train(model, optimizer := make(model.parameters()), batches(2))
    first = optimizer.state_dict()["param_groups"][0]["bundle"]
    kept = copy.deepcopy(first)
    train(model, optimizer, batches(3))
    assert first == kept
    assert optimizer.state_dict()["param_groups"][0]["bundle"] != kept


@over_flavours
def test_groups_of_another_optimizer_can_be_taken_over(make):
    """Some tools build an optimizer from the groups of a used one; the bundle must not be taken over."""
    model = network()
    train(model, optimizer := make(model.parameters()), batches(2))
    optimizer.state_dict()
    other = make([dict(group) for group in optimizer.param_groups])
    assert other.dropped_batches == 0
    train(model, other, batches(2))
