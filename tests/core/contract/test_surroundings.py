"""Surroundings of a step: hooks, a gradient scaler, a compiler, warnings turned into errors."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from flavours import FLAVOURS, over_classes, over_flavours
from problems import batches, network, train, vector
from regression import fresh, take


@over_classes
def test_step_hooks(cls):
    params, (start, _), calls = fresh(), fresh(), []
    opt = cls(params)

    def note(name):
        return lambda given, args, kwargs: calls.append((name, given is opt, torch.equal(params[0], start)))

    handles = [
        opt.register_step_post_hook(note("post")),
        register_optimizer_step_post_hook(note("global post")),
        opt.register_step_pre_hook(note("pre")),
        register_optimizer_step_pre_hook(note("global pre")),
    ]
    take(opt, params, [0])
    for handle in handles:
        handle.remove()
    take(opt, params, [1])
    order = [("global pre", True), ("pre", True), ("post", False), ("global post", False)]
    assert calls == [(name, True, at_start) for name, at_start in order]


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


@pytest.mark.slow
@pytest.mark.parametrize("make", [make for make in FLAVOURS if not make.capturable], ids=str)
def test_compiled_training_step(make):
    """The step on the host is excluded from the graph; test_on_device.py compiles whole steps."""
    torch._dynamo.reset()  # otherwise those of other tests count as recompilations of this one
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
            warnings.simplefilter("ignore")  # the compiler reads .grad of the loss and expects the warning
            training_step(x, y)
        if i == 2:
            warm = compilations
    torch.testing.assert_close(vector(model), expected[-1], rtol=1e-5, atol=1e-6)
    assert warm >= 1
    assert compilations == warm, "no recompilation from step to step"


@over_flavours
def test_no_warnings_in_normal_use(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = network()
        train(model, make(model.parameters()), batches(4))
