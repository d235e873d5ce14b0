"""Arguments: forms of parameters, options, ways to pass the loss, and errors."""

from __future__ import annotations

import copy
import math
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.testing._internal import common_optimizers as suite

from borat import ALIG, BORAT, FreeBORAT
from flavours import has_cap, over_classes, over_flavours, over_options
from problems import batches, network, train, vector
from regression import assert_same, closure, fresh, loss_of, run, take, total_loss, values

FORMS = {
    "generator": lambda w, b: (p for p in (w, b)),
    "named": lambda w, b: [("w", w), ("b", b)],
    "dict": lambda w, b: [{"params": (p for p in (w, b))}],
    "dicts": lambda w, b: [{"params": w}, {"params": [b]}],
    "named dicts": lambda w, b: ({"params": [named]} for named in (("w", w), ("b", b))),
}


@over_options()
def test_goes_in_the_right_direction(cls, options):
    params = fresh()
    before = total_loss(params)
    opt = cls(params, **options)
    # In FreeBORAT's average, the start has a weight of about 1/k^2; larger bundles make fewer updates.
    take(opt, params, range(200 if cls is FreeBORAT or opt.bundle_size > 5 else 60))
    opt.flush()
    opt.eval()
    assert total_loss(params) < 0.01 * before


@over_options()
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_params(cls, options, form):
    params = fresh(torch.float64)
    opt = cls(FORMS[form](*params), **options)
    assert_close(take(opt, params, range(12)), run(cls, options, fresh(torch.float64)))


@over_options(has_cap)
@pytest.mark.parametrize("shape", [(), (1,)])
def test_tensor_lr(cls, options, shape):
    lr = torch.full(shape, 0.25)
    assert_same(run(cls, {**options, "lr": lr}, fresh()), run(cls, {**options, "lr": 0.25}, fresh()))
    assert_same(lr, torch.full(shape, 0.25))


@over_options()
def test_can_be_printed(cls, options):
    opt = cls(fresh(), **options)
    assert repr(opt).startswith(f"{cls.__name__} (")
    for name in ("lr", "betas" if cls is FreeBORAT else "momentum", "lower_bound", "bundle_size"):
        value = opt.param_groups[0][name]
        assert f"    {name}: {value}\n" in repr(opt)
        assert value == options.get(name, value) or value == math.inf
    take(opt, opt.param_groups[0]["params"], range(2))
    opt.state_dict()
    assert "at_origin" not in repr(opt), "the bundle's numbers are not printed"


@over_options(lambda options: "same_batch" not in options)
def test_every_way_to_pass_the_loss_gives_the_same(cls, options):
    def value_closure(loss):
        return lambda: loss

    ways = [
        lambda opt, evaluate: opt.step(evaluate),
        lambda opt, evaluate: opt.step(value_closure(evaluate())),
        lambda opt, evaluate: opt.step(evaluate().item),
        lambda opt, evaluate: opt.step(loss=evaluate()),
        lambda opt, evaluate: opt.step(loss=evaluate().item()),
    ]
    ends = []
    for step in ways:
        ends.append(fresh())
        opt = cls(ends[-1], **options)
        for t in range(12):
            expected = loss_of(values(ends[-1]), t).item()
            loss = step(opt, closure(opt, ends[-1], t))
            assert (loss.item() if isinstance(loss, torch.Tensor) else loss) == expected
    for end in ends[1:]:
        assert_same(end, ends[0])


def test_inference_of_the_loss_type():
    w = nn.Parameter(torch.ones(1))
    optimizer = ALIG([w])
    for loss in (2.0, 2, np.float32(2.0), torch.tensor(2.0), torch.tensor([[2.0]], dtype=torch.bfloat16)):
        w.grad = torch.ones(1)
        assert optimizer.step(loss=loss) is loss


@over_flavours
def test_observed_losses_add_up_until_a_bare_step(make):
    """Gradient accumulation, under a trainer that calls step() without the loss, equals the whole batch."""
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
def test_a_closure_may_skip_its_batch(make):
    model = network()
    optimizer = make(model.parameters())
    before = vector(model)
    assert optimizer.step(lambda: None) is None
    assert torch.equal(vector(model), before)


def test_an_error_in_the_closure_discards_the_bundle_of_its_batch():
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


def test_constraint_is_any_callable():
    calls = []
    w = nn.Parameter(torch.ones(2))
    optimizer = BORAT([w], constraint=lambda params: calls.append([p is w for p in params]))
    for _ in range(4):
        w.grad = torch.ones(2)
        optimizer.step(loss=1.0)
    assert calls == [[True]] * 3, "once at construction and once for each update"


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


def test_alig_has_a_bundle_of_two():
    assert ALIG(network().parameters()).bundle_size == 2
    with pytest.raises(TypeError):
        ALIG(network().parameters(), bundle_size=3)


# Errors


def refused(message, groups=None, **options):
    """Return an entry for PyTorch's suite of errors: the message, and the rejected value."""
    (name, value), *_ = [*options.items(), (None, None)]
    regex = message if name is None or "got" in message else f"{message}, got {re.escape(repr(value))}"
    entry = suite.OptimizerInput(groups, options, f"{name or 'groups'}: {regex}")
    return suite.ErrorOptimizerInput(
        entry, error_on=suite.OptimizerErrorEnum.CONSTRUCTION_ERROR, error_type=ValueError, error_regex=regex
    )


def with_second_group(**options):
    w, b = fresh()
    return [{"params": [w]}, {"params": [b], **options}]


def errors_of_all():
    """Return PyTorch's own error inputs, except for lr, and those common to all of borat's optimizers."""
    common = suite.get_error_inputs_for_all_optims("cpu", torch.float32)
    at_least_0, same = "lr must be a number of at least 0", "must be the same for all"
    return [
        *(entry for entry in common if "lr" not in entry.optimizer_error_input.kwargs),
        refused("empty parameter list", groups=[]),
        *(refused(at_least_0, lr=bad) for bad in (-0.1, math.nan, "fast")),
        refused(f"{at_least_0}, got .*-0.1", lr=torch.tensor(-0.1)),
        refused(r"lr must be a real number or a real tensor with one element, got .* \(2,\)", lr=torch.ones(2)),
        refused(
            "lr must be a real number or a real tensor with one element, got a tensor of torch.complex",
            lr=torch.tensor(1j),
        ),
        refused(rf"{at_least_0}, got -1\.0", groups=with_second_group(lr=-1.0)),
        *(refused("lower_bound must be a finite number", lower_bound=bad) for bad in (-math.inf, math.nan, None)),
        refused("constraint must be None or a callable on a list of parameters", constraint=3),
        *(refused("reduce_loss must be True or False", reduce_loss=bad) for bad in (None, 1)),
        refused("capturable must be True or False", capturable="yes"),
        refused(f"bundle_size {same} .*, got 4", groups=with_second_group(bundle_size=4)),
        refused(rf"lower_bound {same} .*, got 1\.0", groups=with_second_group(lower_bound=1.0)),
    ]


def errors_of_alig():
    momentum = r"momentum must be a number in \[0, 1\)"
    return [
        *(refused(momentum, momentum=bad) for bad in (-0.1, 1.0, math.nan, None)),
        refused(rf"{momentum}, got 2\.0", groups=with_second_group(momentum=2.0)),
        refused("lr must be (None for all .* or for none|finite)", groups=with_second_group(lr=None)),
    ]


def errors_of_borat():
    return [
        *errors_of_alig(),
        *(refused("bundle_size must be an integer of at least 1", bundle_size=bad) for bad in (0, -1, 2.5, 3.0, True)),
        *(
            refused(f"lr must be finite unless bundle_size is 2, got inf with bundle_size={n}", lr=None, bundle_size=n)
            for n in (1, 3)
        ),
        refused("same_batch must be True or False", same_batch=1),
    ]


def errors_of_free():
    others = (("betas", (0.5, 0.5)), ("aim", 0.9), ("eps", 1.0))
    return [
        *(refused("bundle_size must be an integer of at least 2", bundle_size=bad) for bad in (0, 1, 2.0, True)),
        refused(r"got 0\.001\. FreeBORAT has no learning rate", bundle_size=0.001),
        refused("lr must be a number of at least 0", lr=None),
        refused("lr must be finite", lr=math.inf),
        *(
            refused(r"betas must be in \(0, 1\) and \[0, 1\)", betas=bad)
            for bad in ((0.0, 0.9), (0.9, 1.0), (0.9, -0.1))
        ),
        *(refused("betas must be two numbers", betas=bad) for bad in (0.9, None, (0.9, math.nan))),
        *(refused(r"aim must be a number in \(0, 1\]", aim=bad) for bad in (0.0, 1.5, math.nan, "half")),
        *(refused("eps must be a positive, finite number", eps=bad) for bad in (0.0, -1.0, math.inf, math.nan)),
        *(
            refused("weight_decay must be a finite number of at least 0", weight_decay=bad)
            for bad in (-0.1, math.nan, None)
        ),
        *(
            refused(
                f"{key} must be the same for all .*, got {re.escape(repr(bad))}", groups=with_second_group(**{key: bad})
            )
            for key, bad in others
        ),
    ]


@pytest.mark.parametrize(
    ("cls", "entry"),
    [
        pytest.param(cls, entry, id=f"{cls.__name__}: {entry.optimizer_error_input.desc}")
        for cls, errors in ((ALIG, errors_of_alig), (BORAT, errors_of_borat), (FreeBORAT, errors_of_free))
        for entry in (*errors_of_all(), *errors())
    ],
)
def test_rejects_arguments(cls, entry):
    bad = entry.optimizer_error_input
    with pytest.raises(entry.error_type, match=entry.error_regex):  # warnings are errors here
        cls(fresh() if bad.params is None else bad.params, **bad.kwargs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"step needs the loss of the batch.*step\(loss=loss\).*step\(closure\).*step\(lambda: loss\)"),
        ({"closure": torch.tensor(1.0)}, r"closure must be callable, got a Tensor.*step\(loss=loss\)"),
        ({"closure": lambda: 1.0, "loss": 1.0}, "either a closure or the loss, got both"),
        ({"closure": lambda: None}, "loss must be a number or a tensor with one element, got None"),
        ({"loss": torch.ones(2)}, r"loss must have one element, got a tensor of shape \(2,\)"),
        ({"loss": torch.tensor(1j)}, "loss must be a number or a tensor with one element, got"),
        ({"loss": "1.0"}, "loss must be a number or a tensor with one element, got '1.0'"),
    ],
)
@over_classes
def test_rejects_a_step_without_its_loss(cls, arguments, message):
    params = fresh()
    take(opt := cls(params), params, [0])
    loss_of(params, 1).backward()
    with pytest.raises(ValueError, match=message):
        opt.step(**arguments)


@over_classes
def test_rejects_an_observed_loss_of_none(cls):
    with pytest.raises(ValueError, match="loss must be a number or a tensor with one element, got None"):
        cls(fresh()).observe(None)


@pytest.mark.parametrize(("key", "value"), [("lr", -1.0), ("lr", math.nan), ("momentum", 1.5), ("momentum", None)])
def test_rejects_invalid_values_from_a_schedule(key, value):
    model = network()
    optimizer = BORAT(model.parameters())
    train(model, optimizer, batches(1))
    optimizer.param_groups[0][key] = value
    with pytest.raises(ValueError, match=f"{key} must be a number"):
        train(model, optimizer, batches(1))
    optimizer.param_groups[0][key] = 0.5
    train(model, optimizer, batches(1))
    assert optimizer.bundle_position == 0


def test_rejects_a_group_that_is_not_a_dict():
    with pytest.raises(TypeError, match="param_group must be a dict, got list"):
        BORAT(network().parameters()).add_param_group([torch.ones(1)])


def test_alig_rejects_the_state_of_a_larger_bundle():
    with pytest.raises(ValueError, match="bundle_size must be 2 for ALIG, got a state with 5"):
        ALIG(network().parameters()).load_state_dict(BORAT(network().parameters(), 0.1, 5).state_dict())
