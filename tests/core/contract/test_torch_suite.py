"""PyTorch's own optimizer checks, driven over all our optimizers.

The entries are those of ``torch.testing._internal.common_optimizers``. Its driver is not part of the wheel, so that the
checks are written out here. Every run has the same start and the same batches: trajectories can be compared exactly.
"""

import copy
import io
import math
import pickle
from functools import partial

import pytest
import torch
from torch.nn import Parameter
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.testing import assert_close
from torch.testing._internal import common_optimizers as suite
from torch.testing._internal.common_optimizers import OptimizerInput

from borat import ALIG, BORAT, FreeBORAT
from borat.constraints import L2Ball

assert_same = partial(assert_close, rtol=0, atol=0)
assert_close_to = partial(assert_close, rtol=1e-5, atol=1e-5)

# The problem: least squares that a linear model interpolates, with a fresh batch for each step

_GENERATOR = torch.Generator().manual_seed(0)
_X = torch.randn(64, 8, 4, generator=_GENERATOR, dtype=torch.float64)
_Y = _X @ torch.tensor([[0.6, -0.2], [0.3, 0.4], [-0.5, 0.1], [0.2, 0.7]], dtype=torch.float64) + 0.3
_WEIGHT, _BIAS = torch.randn(4, 2, generator=_GENERATOR), torch.randn(2, generator=_GENERATOR)


def fresh(dtype=torch.float32):
    return [Parameter(_WEIGHT.to(dtype, copy=True)), Parameter(_BIAS.to(dtype, copy=True))]


def values(params):
    return [p.detach().clone() for p in params]


def loss_of(tensors, batch):
    weight, bias = (x.double() for x in tensors)
    return (_X[batch] @ weight + bias - _Y[batch]).square().mean()


def total_loss(params):
    return float(loss_of(values(params), slice(None)))


def closure(opt, params, t, view=list):
    def evaluate():
        opt.zero_grad()
        loss = loss_of(view(params), t)
        loss.backward()
        return loss

    return evaluate


def train(opt, params, steps, view=list):
    """Take the steps; all the points on the way, in the view that the loss has of the parameters."""
    points = []
    for t in steps:
        opt.step(closure(opt, params, t, view))
        points += values(view(params))
    return points


def run(cls, kwargs, params, view=list):
    return train(cls(params, **kwargs), params, range(12), view)


# The entries


def inputs_alig(device=None, dtype=None):
    return [
        OptimizerInput(None, {}, "default"),
        OptimizerInput(None, {"lr": 0.5, "momentum": 0.0}, "no momentum"),
        OptimizerInput(None, {"lr": None, "momentum": 0.0}, "no cap"),
        OptimizerInput(None, {"lr": None, "momentum": 0.9}, "no cap, momentum"),
        OptimizerInput(None, {"lr": 0.5, "lower_bound": -0.5}, "lower bound"),
        OptimizerInput(None, {"lr": torch.tensor(0.5)}, "tensor lr"),
        OptimizerInput(None, {"lr": 0.5, "constraint": L2Ball(1.5)}, "constraint"),
    ]


def inputs_borat(device=None, dtype=None):
    sizes = [{"bundle_size": n, "momentum": m, "lr": 0.5} for n in (1, 2, 3, 5) for m in (0.0, 0.9)]
    return [
        *(OptimizerInput(None, kwargs, "N={bundle_size}, momentum={momentum}".format(**kwargs)) for kwargs in sizes),
        *(entry for entry in inputs_alig(device, dtype) if has_cap(entry.kwargs)),
        OptimizerInput(None, {"bundle_size": 4, "lr": 0.5, "same_batch": True}, "same batch"),
    ]


def inputs_free(device=None, dtype=None):
    return [
        *(OptimizerInput(None, {"bundle_size": n}, f"N={n}") for n in (2, 3, 5)),
        OptimizerInput(None, {"aim": 1.0}, "aim"),
        OptimizerInput(None, {"betas": (0.8, 0.9), "eps": 1e-6}, "betas"),
        OptimizerInput(None, {"lower_bound": -0.05}, "lower bound"),
        OptimizerInput(None, {"weight_decay": 1e-3}, "weight decay"),
        OptimizerInput(None, {"lr": torch.tensor(0.5)}, "tensor lr"),
        OptimizerInput(None, {"constraint": L2Ball(1.5)}, "constraint"),
    ]


def has_cap(kwargs):
    return kwargs.get("lr", 0.1) is not None


def value_error(regex, params=None, error_on=suite.OptimizerErrorEnum.CONSTRUCTION_ERROR, **kwargs):
    entry = OptimizerInput(params, kwargs, f"{regex} {kwargs or ''}")
    return suite.ErrorOptimizerInput(entry, error_on=error_on, error_type=ValueError, error_regex=regex)


def error_inputs_alig(device, dtype):
    w, b = ({"params": [p]} for p in fresh(dtype))
    lr, momentum = "lr must be a number of at least 0", r"momentum must be a number in \[0, 1\)"
    common = suite.get_error_inputs_for_all_optims(device, dtype)
    return [
        *(entry for entry in common if "lr" not in entry.optimizer_error_input.kwargs),  # that one has our words:
        value_error("lr must be .* one element", lr=torch.tensor([0.1, 0.1])),
        *(value_error(lr, lr=bad) for bad in (-0.1, math.nan, torch.tensor(-0.1), "fast")),
        *(value_error(momentum, momentum=bad) for bad in (-0.1, 1.0, math.nan, None)),
        *(value_error("lower_bound must be a finite", lower_bound=bad) for bad in (-math.inf, math.nan, None)),
        value_error("constraint must be None or a callable", constraint=2.0),
        value_error(lr, [w, {**b, "lr": -1.0}]),
        value_error(momentum, [w, {**b, "momentum": 2.0}]),
        value_error("lr must be (None for all|finite)", [w, {**b, "lr": None}]),
        value_error("bundle_size must be the same for all", [w, {**b, "bundle_size": 4}]),
        value_error("lower_bound must be the same for all", [w, {**b, "lower_bound": 1.0}]),
        value_error("empty parameter list", []),
        value_error("step needs the loss of the batch", error_on=suite.OptimizerErrorEnum.STEP_ERROR),
    ]


def error_inputs_borat(device, dtype):
    return [
        *error_inputs_alig(device, dtype),
        *(value_error("bundle_size must be .* at least 1", bundle_size=bad) for bad in (0, -1, 3.0, True)),
        *(value_error("lr must be finite unless", bundle_size=n, lr=None) for n in (1, 3)),
        value_error("same_batch must be True or False", same_batch=1),
    ]


def error_inputs_free(device, dtype):
    w, b = ({"params": [p]} for p in fresh(dtype))
    common = suite.get_error_inputs_for_all_optims(device, dtype)
    return [
        *(entry for entry in common if "lr" not in entry.optimizer_error_input.kwargs),
        value_error("lr must be .* one element", lr=torch.tensor([0.1, 0.1])),
        *(value_error("lr must be a number of at least 0", lr=bad) for bad in (-0.1, math.nan, None, "fast")),
        value_error("lr must be finite", lr=math.inf),
        *(value_error("bundle_size must be .* at least 2", bundle_size=bad) for bad in (0, 1, 3.0, True)),
        *(value_error("betas must be", betas=bad) for bad in ((1.0, 0.9), (0.9, -0.1), 0.9, None)),
        *(value_error("aim must be", aim=bad) for bad in (0.0, 1.1, math.nan, "half")),
        *(value_error("eps must be", eps=bad) for bad in (0.0, -1.0, math.inf)),
        *(value_error("weight_decay must be", weight_decay=bad) for bad in (-1.0, math.nan, None)),
        *(value_error(f"{key} must be the same for all", [w, {**b, key: value}]) for key, value in OTHERS.items()),
        value_error("step needs the loss of the batch", error_on=suite.OptimizerErrorEnum.STEP_ERROR),
    ]


OTHERS = {"bundle_size": 4, "lower_bound": 1.0, "betas": (0.5, 0.5), "aim": 0.9, "eps": 1.0}


def warm_up_and_decay(opt):
    return [lr_scheduler.LinearLR(opt), lr_scheduler.ExponentialLR(opt, gamma=0.95)]


LAYOUTS = {
    "complex": (torch.view_as_complex, torch.view_as_real),
    "strided": (lambda x: torch.stack((x, x), dim=-1)[..., 0], torch.clone),
    "transposed": (lambda x: x.mT.contiguous().mT if x.dim() == 2 else x, torch.clone),
}
FORMS = {
    "generator": lambda w, b: (p for p in (w, b)),
    "named": lambda w, b: [("w", w), ("b", b)],
    "dict": lambda w, b: [{"params": (p for p in (w, b))}],
    "dicts": lambda w, b: [{"params": w}, {"params": [b]}],
    "named dicts": lambda w, b: ({"params": [named]} for named in (("w", w), ("b", b))),
}
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
INFOS = [
    suite.OptimizerInfo(
        cls,
        optim_inputs_func=inputs,
        optim_error_inputs_func=error_inputs,
        scheduler_inputs=tuple(SCHEDULERS.values()),
        supported_impls=(),
        step_requires_closure=True,
    )
    for cls, inputs, error_inputs in (
        (BORAT, inputs_borat, error_inputs_borat),
        (ALIG, inputs_alig, error_inputs_alig),
        (FreeBORAT, inputs_free, error_inputs_free),
    )
]
over_classes = pytest.mark.parametrize("cls", [pytest.param(info.optim_cls, id=info.name) for info in INFOS])
over_errors = pytest.mark.parametrize(
    ("cls", "entry"),
    [
        pytest.param(info.optim_cls, entry, id=f"{info.name}: {entry.optimizer_error_input.desc}")
        for info in INFOS
        for entry in info.optim_error_inputs_func("cpu", torch.float32)
    ],
)


def over_inputs(keep=lambda kwargs: True, of=(BORAT, ALIG, FreeBORAT)):
    infos = [info for info in INFOS if info.optim_cls in of]
    cases = [(info, entry) for info in infos for entry in info.optim_inputs_func("cpu") if keep(entry.kwargs)]
    ids = [f"{info.name}: {entry.desc}" for info, entry in cases]
    return pytest.mark.parametrize(("cls", "kwargs"), [(i.optim_cls, e.kwargs) for i, e in cases], ids=ids)


# The checks


@over_errors
def test_errors(cls, entry):
    bad = entry.optimizer_error_input
    params = fresh() if bad.params is None else bad.params
    provoke = partial(cls, params, **bad.kwargs)
    if entry.error_on is suite.OptimizerErrorEnum.STEP_ERROR:
        provoke = provoke().step
        loss_of(params, 0).backward()
    with pytest.raises(entry.error_type, match=entry.error_regex):  # warnings are errors here
        provoke()


@over_inputs()
def test_goes_in_the_right_direction(cls, kwargs):
    params = fresh()
    before = total_loss(params)
    opt = cls(params, **kwargs)
    # FreeBORAT's result is an average, which forgets the start like 1/k^2.
    train(opt, params, [t % len(_X) for t in range(200)] if cls is FreeBORAT else range(60))
    opt.flush()
    opt.eval()
    assert total_loss(params) < 0.01 * before


@over_inputs(lambda kwargs: "same_batch" not in kwargs)
def test_every_way_to_pass_the_loss_gives_the_same(cls, kwargs):
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
        opt = cls(ends[-1], **kwargs)
        for t in range(12):
            expected = loss_of(values(ends[-1]), t).item()
            loss = step(opt, closure(opt, ends[-1], t))
            assert (loss.item() if isinstance(loss, torch.Tensor) else loss) == expected
    for end in ends[1:]:
        assert_same(end, ends[0])


@over_classes
def test_step_hooks(cls):
    params, calls = fresh(), []
    opt = cls(params)

    def note(name):
        return lambda given, args, kwargs: calls.append((name, given is opt, bool(torch.equal(params[0], _WEIGHT))))

    handles = [
        opt.register_step_post_hook(note("post")),
        register_optimizer_step_post_hook(note("global post")),
        opt.register_step_pre_hook(note("pre")),
        register_optimizer_step_pre_hook(note("global pre")),
    ]
    train(opt, params, [0])
    for handle in handles:
        handle.remove()
    train(opt, params, [1])
    order = [("global pre", True), ("pre", True), ("post", False), ("global post", False)]
    assert calls == [(name, True, at_start) for name, at_start in order]


@over_classes
def test_state_dict_hooks(cls):
    params, calls = fresh(), []
    opt = cls(params)
    opt.register_state_dict_pre_hook(lambda given: calls.append(("pre", given is opt)))
    opt.register_state_dict_pre_hook(lambda given: train(given, params, [0]), prepend=True)
    opt.register_state_dict_post_hook(lambda given, state: calls.append(("post", len(state["state"]))))
    opt.register_state_dict_post_hook(lambda given, state: {**state, "extra": 1})
    assert opt.state_dict()["extra"] == 1
    assert calls == [("pre", True), ("post", 2)]


@over_classes
@pytest.mark.parametrize("taken", [0, 2])
def test_load_state_dict_hooks(cls, taken):
    (params, twin), calls = (fresh(), fresh()), []
    opt, other = cls(params), cls(twin)
    train(opt, params, range(3))
    train(other, twin, range(taken))
    state, own = opt.state_dict(), other.state_dict()
    torch._foreach_copy_([p.data for p in twin], values(params))
    other.register_load_state_dict_pre_hook(lambda _, given: calls.append(("replace", given["param_groups"])) or state)
    other.register_load_state_dict_pre_hook(lambda _, given: calls.append(("pre", given["state"])))
    other.register_load_state_dict_post_hook(lambda given: calls.append(("post", given.bundle_position)))
    other.load_state_dict(own)
    assert calls == [("replace", own["param_groups"]), ("pre", state["state"]), ("post", opt.bundle_position)]
    assert_same(train(other, twin, range(3, 9)), train(opt, params, range(3, 9)))


@pytest.mark.filterwarnings("ignore:The epoch parameter in .scheduler.step")  # SequentialLR's own, up to PyTorch 2.6
@over_classes
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(cls, name):
    points = []
    start, goal = (1.0, 0.5) if cls is FreeBORAT else (0.2, 0.2)
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
            train(opt, params, [t])
            assert opt.bundle_position or opt.last_step.lr == opened_with
            sgd.step()
            for each in (scheduler, of_sgd):
                each.step(*([1.0] if name == "plateau" else []))
            assert type(group["lr"]) is type(theirs["lr"])
            assert group["lr"] == theirs["lr"]
            rates.add(float(group["lr"]))
            momenta.add(group["betas"][0] if cls is FreeBORAT else group["momentum"])
        assert len(rates) > 3
        assert (len(momenta) > 3) == (name == "one cycle, momentum")
        opt.eval()
        assert total_loss(params) < goal * before
        points.append(values(params))
    if name != "sequential" or not torch.__version__.startswith("2.6."):  # it spoils a tensor that is the initial rate
        assert_close_to(*points)


@over_inputs(has_cap)
@pytest.mark.parametrize("shape", [(), (1,)])
def test_tensor_lr(cls, kwargs, shape):
    lr = torch.full(shape, 0.25)
    assert_same(run(cls, {**kwargs, "lr": lr}, fresh()), run(cls, {**kwargs, "lr": 0.25}, fresh()))
    assert_same(lr, torch.full(shape, 0.25))


@over_inputs()
@pytest.mark.parametrize("gradient", [None, torch.zeros])
def test_step_without_gradients_does_nothing(cls, kwargs, gradient):
    params = fresh()
    opt = cls(params, **kwargs)
    start = values(params)
    for p in params:
        p.grad = gradient and gradient(p.shape)
    for loss in (1, 2.0, torch.tensor(3.0), 4, 5.0):
        assert opt.step(loss=loss) is loss
        assert gradient or opt.step(lambda loss=loss: loss) is loss
        assert_same(params, start)
    assert bool(opt.state_dict()["state"]) == bool(gradient)


@over_inputs()
def test_resumes_at_every_position_of_the_bundle(cls, kwargs):
    params, points = fresh(), run(cls, kwargs, fresh())
    opt = cls(params, **kwargs)
    for t in range(opt.bundle_size + 1):
        file = io.BytesIO()
        torch.save((params, opt.state_dict()), file)
        for named in (False, True):
            resumed = fresh()
            other = cls(zip("wb", resumed, strict=True) if named else resumed, **kwargs)
            for _ in range(2):  # the second time into an optimizer that has been used
                file.seek(0)
                weights, state = torch.load(file, weights_only=True)
                kept = copy.deepcopy(state)
                other.load_state_dict(state)
                torch._foreach_copy_([p.data for p in resumed], weights)
                assert_same(other.state_dict()["state"], opt.state_dict()["state"])
                assert_same(train(other, resumed, range(t, 12)), points[2 * t :])
                assert_same(state, kept)
        train(opt, params, [t])


@over_classes
def test_resumes_on_weights_that_were_loaded_before_it_was_built(cls):
    build = partial(cls, lr=0.5, constraint=L2Ball(0.8))  # at the boundary, so that trial points lie outside
    for t in range(6):
        params = fresh()
        opt = build(params)
        train(opt, params, range(t))
        resumed = [Parameter(x) for x in values(params)]
        other = build(resumed)
        other.load_state_dict(opt.state_dict())
        assert_close_to(train(other, resumed, range(t, 12)), train(opt, params, range(t, 12)))


@over_inputs()
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_copies_continue_the_same_trajectory(cls, kwargs, copied):
    params = fresh()
    opt = cls(params, **kwargs)
    copies = []
    for t in range(opt.bundle_size + 1):
        copies.append(copied((params, opt)))
        for name in vars(opt).keys() - {"state", "param_groups", "defaults"}:
            assert name.startswith("_") or getattr(copies[-1][1], name) == getattr(opt, name)
        assert repr(copies[-1][1]) == repr(opt)
        train(opt, params, [t])
    points = run(cls, kwargs, fresh())
    for t, (twin, other) in enumerate(copies):
        assert_same(train(other, twin, range(t, 12)), points[2 * t :])


@over_inputs()
def test_can_be_printed(cls, kwargs):
    opt = cls(fresh(), **kwargs)
    assert repr(opt).startswith(f"{cls.__name__} (")
    for name in ("lr", "betas" if cls is FreeBORAT else "momentum", "lower_bound", "bundle_size"):
        value = opt.param_groups[0][name]
        assert f"    {name}: {value}\n" in repr(opt)
        assert value == kwargs.get(name, value) or value == math.inf


@over_inputs(lambda kwargs: has_cap(kwargs) and "constraint" not in kwargs, of=(BORAT, ALIG))
def test_lr_of_a_group_is_a_change_of_variables(cls, kwargs):
    """A group with the lr c²η moves like one with the lr η whose parameters are written in units of c."""
    c, lr, params, units = 0.5, 0.4, fresh(torch.float64), fresh(torch.float64)
    units[1].data /= c
    opt = cls([{"params": params[0]}, {"params": params[1], "lr": c * c * lr}], **{**kwargs, "lr": lr})
    expected = run(cls, {**kwargs, "lr": lr}, units, view=lambda ps: [ps[0], c * ps[1]])
    assert_close(train(opt, params, range(12)), expected)


@over_inputs()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mixed_dtypes(cls, kwargs, dtype):
    params = [fresh(torch.float64)[0], fresh(dtype)[1]]
    opt = cls(params, **kwargs)
    points, expected = train(opt, params, range(8)), run(cls, kwargs, fresh(torch.float64))[:16]
    tolerance = 16.0 * torch.finfo(dtype).eps
    assert_close([x.double() for x in points], expected, rtol=tolerance, atol=tolerance)
    for p in params:
        kept = {key: x.dtype for key, x in opt.state[p].items() if isinstance(x, torch.Tensor)}
        assert kept.pop("rms", torch.float32) == torch.promote_types(p.dtype, torch.float32) or cls is not FreeBORAT
        assert set(kept.values()) <= {p.dtype}


@over_inputs()
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(cls, kwargs, layout):
    lay_out, view = LAYOUTS[layout]
    params = [Parameter(lay_out(x)) for x in values(fresh())]
    strides = [p.stride() for p in params]
    assert_close_to(run(cls, kwargs, params, lambda params: [view(p) for p in params]), run(cls, kwargs, fresh()))
    assert [p.stride() for p in params] == strides


@over_inputs()
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_params(cls, kwargs, form):
    params = fresh(torch.float64)
    opt = cls(FORMS[form](*params), **kwargs)
    assert_close(train(opt, params, range(12)), run(cls, kwargs, fresh(torch.float64)))


@over_inputs(lambda kwargs: has_cap(kwargs) and "constraint" not in kwargs, of=(BORAT, ALIG))
def test_group_that_comes_late_had_no_lr_before(cls, kwargs):
    for start in range(kwargs.get("bundle_size", 3) + 1):
        params, twin = fresh(torch.float64), fresh(torch.float64)
        opt = cls(params[:1], **kwargs)
        other = cls([{"params": twin[0]}, {"params": twin[1], "lr": 0.0}], **kwargs)
        assert_close(train(opt, params, range(start)), train(other, twin, range(start)))
        opt.add_param_group({"params": params[1:], "lr": 0.3})
        other.param_groups[1]["lr"] = 0.3
        assert_close(train(opt, params, range(start, start + 8)), train(other, twin, range(start, start + 8)))
        assert not torch.equal(params[1], fresh(torch.float64)[1])


@over_classes
def test_group_can_be_added_after_a_look_at_the_state(cls):
    params, twin = fresh(), fresh()
    opt = cls(params[:1])
    assert not opt.state[params[0]]  # a defaultdict: this makes an entry
    opt.add_param_group({"params": params[1:]})
    assert_same(train(opt, params, range(4)), train(cls([{"params": p} for p in twin]), twin, range(4)))
