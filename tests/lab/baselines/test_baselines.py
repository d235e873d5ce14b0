"""The optimizers of other papers: each on steps computed by hand, and all through one interface."""

from __future__ import annotations

import io
import math
import sys

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parameters_to_vector

from borat import ALIG
from borat.lab.baselines import evaluating, make_loss, make_optimizer, make_schedule, step_size, take_step
from borat.lab.baselines.loss_based import DFW, SPS, BPGrad, L4Adam, L4Mom
from borat.lab.config import LOSSES, SCHEDULES, RunConfig
from borat.lab.figures import COLOURS
from borat.lab.methods import METHODS
from processes import start_warm

OWN = ("dfw", "bpgrad", "l4adam", "l4mom", "sps")

COORDINATEWISE = ("adagrad", "adam", "amsgrad", "adamw", "nadamw", "rmsprop", "yogi", "schedule-free-adamw")
WITHOUT_WEIGHT_DECAY = ("borat", "alig")


def configured(optimizer: str, **changes) -> RunConfig:
    loss = "smooth-hinge" if optimizer == "dfw" else "ce"
    return RunConfig(**{"optimizer": optimizer, "lr": METHODS[optimizer].lr, "loss": loss, "bundle_size": 4, **changes})


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def batch(number: int, size: int = 16) -> tuple[Tensor, Tensor]:
    """Return examples whose classes a linear model can separate."""
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(size, 5, generator=generator, dtype=torch.float64)
    return x, x[:, :3].argmax(1)


def train(model: nn.Module, optimizer, criterion: nn.Module, numbers: range, schedule=None) -> list[float]:
    losses = []
    dtype = next(model.parameters()).dtype
    for number in numbers:
        x, y = batch(number)
        optimizer.zero_grad()
        loss = criterion(model(x.to(dtype)), y)
        loss.backward()
        take_step(optimizer, loss)
        if schedule is not None:
            schedule.after_batch()
        losses.append(loss.item())
    return losses


def vector(model: nn.Module) -> Tensor:
    return parameters_to_vector(model.parameters()).detach().clone()


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def step_on(optimizer, w: Tensor, gradient: list[float], loss: float) -> list[float]:
    w.grad = torch.tensor(gradient, dtype=w.dtype)
    optimizer.step(loss=torch.tensor(loss, dtype=w.dtype))
    return w.tolist()


def weights(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


# By hand


def test_dfw_by_hand():
    w = weights(1.0, 2.0)
    optimizer = DFW([w], lr=0.1, momentum=0.5, weight_decay=0.1)
    # r = (0.1, 0.2), <delta, r> = 1.1, ||delta||^2 = 25: gamma = (0.5 - 0.11) / 2.5 = 0.156
    # z = -0.0156 (3.1, 4.2) = (-0.04836, -0.06552); w = (1 - 0.0568 - 0.02418, 2 - 0.0824 - 0.03276)
    assert step_on(optimizer, w, [3.0, 4.0], 0.5) == pytest.approx([0.91902, 1.88484], rel=1e-12)
    assert optimizer.step_size == pytest.approx(0.0156)
    # the loss is so large that gamma = 1; r = (0.091902, 0.188484)
    # z = (-0.02418 - 0.1091902, -0.03276 - 0.0188484) = (-0.1333702, -0.0516084)
    # w = (0.91902 - 0.1091902 - 0.0666851, 1.88484 - 0.0188484 - 0.0258042)
    assert step_on(optimizer, w, [1.0, 0.0], 10.0) == pytest.approx([0.7431447, 1.8401874], rel=1e-12)
    assert optimizer.step_size == pytest.approx(0.1)
    # the regularisation alone goes farther than the loss wants: gamma = 0; r = (0.07431447, 0.18401874)
    # z = (-0.0666851, -0.0258042); w = (0.7431447 - 0.007431447 - 0.03334255, 1.8401874 - 0.018401874 - 0.0129021)
    assert step_on(optimizer, w, [1.0, 1.0], 0.0) == pytest.approx([0.702370703, 1.808883426], rel=1e-12)
    assert optimizer.step_size == 0.0


def test_dfw_is_alig_without_weight_decay():
    """The paper claims it."""
    points = []
    for kind in (DFW, ALIG):
        torch.manual_seed(0)
        model = network(torch.float64)
        train(model, kind(model.parameters(), lr=0.5, momentum=0.9), make_loss(configured("dfw")), range(20))
        points.append(vector(model))
    torch.testing.assert_close(*points, rtol=1e-10, atol=1e-12)


def test_bpgrad_by_hand():
    w = weights(1.0, 2.0)
    optimizer = BPGrad([w], lr=0.1, momentum=0.5)
    # f / ||g|| = 2 / 5; v = -0.04 (3, 4)
    assert step_on(optimizer, w, [3.0, 4.0], 2.0) == pytest.approx([0.88, 1.84], rel=1e-12)
    assert optimizer.step_size == pytest.approx(0.04)
    # f / ||g|| = 1 / 2; v = (-0.06, -0.08) - 0.05 (0, 2)
    assert step_on(optimizer, w, [0.0, 2.0], 1.0) == pytest.approx([0.82, 1.66], rel=1e-12)


def test_bpgrad_uses_the_regularised_loss_and_moves_without_momentum():
    w = weights(3.0, 4.0)
    optimizer = BPGrad([w], lr=0.1, momentum=0.0, weight_decay=2.0)
    # f = 1 + 25, g = (6, 8), ||g|| = 10
    assert step_on(optimizer, w, [0.0, 0.0], 1.0) == pytest.approx([3.0 - 0.26 * 6.0, 4.0 - 0.26 * 8.0], rel=1e-12)


def test_l4mom_by_hand():
    w = weights(1.0)
    optimizer = L4Mom([w], lr=0.15, momentum=0.9)
    # g = v = 2, L_min = 0.75: 0.15 (1 - 0.9 * 0.75) / 4
    position = 1.0 - 0.15 * 0.325 / 4.0 * 2.0
    assert step_on(optimizer, w, [2.0], 1.0) == pytest.approx([position], rel=1e-10)
    assert optimizer.step_size == pytest.approx(0.0121875)
    # the average 0.9 * 0.2 + 0.1 * 1 = 0.28, corrected by 0.19; L_min = min(0.75 * 1.001, 0.5) = 0.5
    position -= 0.15 * (0.5 - 0.45) / (0.28 / 0.19)
    assert step_on(optimizer, w, [1.0], 0.5) == pytest.approx([position], rel=1e-10)
    # the average 0.9 * 0.28 + 0.1 = 0.352, corrected by 0.271; L_min = min(0.5 * 1.001, 2) = 0.5005
    position -= 0.15 * (2.0 - 0.9 * 0.5005) / (0.352 / 0.271)
    assert step_on(optimizer, w, [1.0], 2.0) == pytest.approx([position], rel=1e-10)


def test_l4adam_by_hand():
    w = weights(1.0, 0.0)
    optimizer = L4Adam([w], lr=0.15)
    # g = (2, -4), v = (2 / 2.0001, -4 / 4.0001)
    v = (2.0 / 2.0001, -4.0 / 4.0001)
    size = 0.15 * (1.0 - 0.9 * 0.75) / (2.0 * v[0] - 4.0 * v[1])
    assert step_on(optimizer, w, [2.0, -4.0], 1.0) == pytest.approx([1.0 - size * v[0], -size * v[1]], rel=1e-10)
    assert optimizer.step_size == pytest.approx(size)
    # averages (0.18 + 0.1, -0.36) / 0.19; of squares (0.001 * (0.999 * 4 + 1), 0.001 * 0.999 * 16) / (1 - 0.999^2)
    before = w.tolist()
    g = (0.28 / 0.19, -0.36 / 0.19)
    correction = 1.0 - 0.999**2
    v = (g[0] / (math.sqrt(0.004996 / correction) + 1e-4), g[1] / (math.sqrt(0.015984 / correction) + 1e-4))
    size = 0.15 * (0.8 - 0.9 * 0.75075) / (g[0] * v[0] + g[1] * v[1])
    expected = [before[0] - size * v[0], before[1] - size * v[1]]
    assert step_on(optimizer, w, [1.0, 0.0], 0.8) == pytest.approx(expected, rel=1e-10)


def test_l4_uses_the_regularised_loss():
    w = weights(2.0)
    optimizer = L4Mom([w], lr=0.15, weight_decay=0.5)
    # the loss 1 + 0.25 * 4 = 2, the gradient 3 + 1 = 4
    assert step_on(optimizer, w, [3.0], 1.0) == pytest.approx([2.0 - 0.15 * 2.0 * 0.325 / 4.0], rel=1e-10)


def test_sps_by_hand():
    w = weights(1.0, 2.0)
    optimizer = SPS([w], lr=1.0)
    # 2 / (0.5 * 25) = 0.16
    assert step_on(optimizer, w, [3.0, 4.0], 2.0) == pytest.approx([0.52, 1.36], rel=1e-12)
    # 5 / (0.5 * 1) = 10 is bounded by 1
    assert step_on(optimizer, w, [0.0, 1.0], 5.0) == pytest.approx([0.52, 0.36], rel=1e-12)
    assert optimizer.step_size == 1.0
    # no gradient, no step
    assert step_on(optimizer, w, [0.0, 0.0], 5.0) == pytest.approx([0.52, 0.36], rel=1e-12)


def test_sps_uses_the_regularised_loss():
    w = weights(3.0, 4.0)
    # 26 / (0.5 * 100) = 0.52
    optimizer = SPS([w], lr=1.0, weight_decay=2.0)
    assert step_on(optimizer, w, [0.0, 0.0], 1.0) == pytest.approx([3.0 - 0.52 * 6.0, 4.0 - 0.52 * 8.0], rel=1e-12)


@pytest.mark.parametrize("name", OWN)
def test_loss_based_optimizers_take_groups_closures_and_missing_gradients(name):
    """Groups do not change the result; a parameter without a gradient does not change."""
    points = []
    for groups in (1, 2):
        torch.manual_seed(0)
        model, unused = network(torch.float64), nn.Parameter(torch.ones(3))
        kind = type(make_optimizer(model, configured(name)))
        params = list(model.parameters())
        optimizer = kind(
            [*params, unused] if groups == 1 else [{"params": params[:2]}, {"params": [*params[2:], unused]}],
            lr=METHODS[name].lr,
        )
        criterion = make_loss(configured(name))
        for number in range(6):
            x, y = batch(number)

            def closure(x=x, y=y, model=model, optimizer=optimizer, criterion=criterion):
                optimizer.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
                return loss

            assert optimizer.step(closure).item() > 0.0
        assert torch.equal(unused, torch.ones(3))
        points.append(vector(model))
    torch.testing.assert_close(*points, rtol=1e-10, atol=1e-12)


# All methods


def test_the_table_has_every_name_once():
    assert all(name == method.name for name, method in METHODS.items())
    assert len({method.label for method in METHODS.values()}) == len(METHODS)
    for method in METHODS.values():
        assert set(method.takes) <= {"bundle_size", "momentum", "weight_decay", "radius"}
        assert set(method.losses) <= set(LOSSES)
        assert set(method.colours.values()) <= set(COLOURS)


@pytest.mark.parametrize("name", METHODS)
def test_all_learn_a_separable_problem(name):
    """At the learning rate that their authors advise."""
    model = network()
    config = configured(name, weight_decay=0.0 if name in WITHOUT_WEIGHT_DECAY else 1e-3)
    optimizer, criterion = make_optimizer(model, config), make_loss(config)
    x, y = batch(10**6, 500)

    def evaluate() -> tuple[float, float]:
        model.eval()
        with evaluating(optimizer), torch.no_grad():
            scores = model(x.float())
        model.train()
        return criterion(scores, y).item(), (scores.argmax(1) == y).float().mean().item()

    start, _ = evaluate()
    losses = train(model, optimizer, criterion, range(200))
    end, accuracy = evaluate()
    assert all(map(math.isfinite, losses))
    assert end < 0.7 * start
    assert accuracy > 0.6, "a third is chance"


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_all_resume_exactly(name, precision, schedule):
    """Five steps, a checkpoint loaded into new objects, and five more equal ten steps, bit for bit."""
    config = configured(name, radius=2.0, schedule=schedule, epochs=2)

    def fresh(seed: int):
        torch.manual_seed(seed)
        model = network(precision)
        optimizer = make_optimizer(model, config)
        return model, optimizer, make_schedule(optimizer, config, 5)

    criterion = make_loss(config)
    model, optimizer, plan = fresh(0)
    first = train(model, optimizer, criterion, range(5), plan)
    saved = through_a_file([model.state_dict(), optimizer.state_dict(), plan.state_dict()])
    rest = train(model, optimizer, criterion, range(5, 10), plan)

    other, other_optimizer, other_plan = fresh(1)
    for target, state in zip((other, other_optimizer, other_plan), saved, strict=True):
        target.load_state_dict(state)
    assert train(other, other_optimizer, criterion, range(5, 10), other_plan) == rest
    assert torch.equal(vector(other), vector(model))
    assert step_size(other_optimizer) == step_size(optimizer)
    with evaluating(optimizer), evaluating(other_optimizer):
        assert all(
            torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True)
        )
    assert len(set(first + rest)) == 10, "each step has changed the model"


@pytest.mark.parametrize("name", METHODS)
def test_a_step_does_not_evaluate_the_model(name):
    model = network()
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    optimizer = make_optimizer(model, configured(name))
    start = vector(model)
    train(model, optimizer, make_loss(configured(name)), range(1))
    assert len(calls) == 1
    assert not torch.equal(vector(model), start)


@pytest.mark.parametrize("name", METHODS)
def test_evaluation_is_undone_bit_for_bit(name):
    model = network()
    optimizer = make_optimizer(model, configured(name))
    criterion = make_loss(configured(name))
    train(model, optimizer, criterion, range(8))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for _ in range(2):
        with evaluating(optimizer):
            moved = any(not torch.equal(value, before[key]) for key, value in model.state_dict().items())
            saved = through_a_file(optimizer.state_dict())
        assert moved == (name in ("borat", "free-borat", "schedule-free", "schedule-free-adamw", "dog"))
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    with pytest.raises(ZeroDivisionError), evaluating(optimizer):
        raise ZeroDivisionError
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    train(model, optimizer, criterion, range(8, 9))
    assert saved["param_groups"], "even during evaluation"


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("radius", [0.5, 1.5])
def test_all_stay_in_the_ball(name, radius):
    model = network()
    optimizer = make_optimizer(model, configured(name, radius=radius, lr=10.0 * METHODS[name].lr))
    criterion = make_loss(configured(name))
    norms = []
    for number in range(12):
        with evaluating(optimizer):
            norms.append(vector(model).norm().item())
        train(model, optimizer, criterion, range(number, number + 1))
    assert all(norm <= radius * (1.0 + 1e-5) for norm in norms)


@pytest.mark.parametrize(
    "name", sorted(set(METHODS) - set(COORDINATEWISE) - {"borat", "free-borat", "l4adam", "momo-adam", "prodigy"})
)
def test_step_size_is_the_factor_of_the_gradient(name):
    """Without momentum, also after the first step."""
    momentum = 1e-9 if name == "schedule-free" else 0.0
    config = configured(name, momentum=momentum)
    model = network(torch.float64)
    optimizer = make_optimizer(model, config)
    assert step_size(optimizer) == (config.lr if name in ("sgd", "heavy-ball") else None)
    for number in range(3):
        before = vector(model)
        train(model, optimizer, make_loss(config), range(number, number + 1))
        gradient = parameters_to_vector([p.grad for p in model.parameters()])
        torch.testing.assert_close(vector(model), before - step_size(optimizer) * gradient, rtol=1e-7, atol=1e-9)


def test_step_size_of_a_bundle():
    config = configured("borat", momentum=0.0, bundle_size=3)
    model = network(torch.float64)
    optimizer, criterion = make_optimizer(model, config), make_loss(config)
    assert step_size(optimizer) is None
    train(model, optimizer, criterion, range(1))
    assert step_size(optimizer) is None, "the bundle is still open"
    train(model, optimizer, criterion, range(1, 2))
    weights_of_pieces = optimizer.last_step.alpha
    assert step_size(optimizer) == pytest.approx(config.lr * (weights_of_pieces[0] + weights_of_pieces[1]))
    sgd = make_optimizer(model, configured("borat", bundle_size=1, lr=0.03))
    train(model, sgd, criterion, range(1))
    assert step_size(sgd) == 0.03


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_step_size_of_momo_adam(weight_decay):
    """The step size is the factor of the averaged gradient over the root of the averaged squares."""
    config = configured("momo-adam", weight_decay=weight_decay)
    model = network(torch.float64)
    optimizer, criterion = make_optimizer(model, config), make_loss(config)
    sizes = []
    for number in range(30):
        before = vector(model)
        train(model, optimizer, criterion, range(number, number + 1))
        states = [optimizer.state[p] for p in model.parameters()]
        average = parameters_to_vector([s["grad_avg"] for s in states])
        square = parameters_to_vector([s["grad_avg_sq"] for s in states]) / (1.0 - 0.999 ** (number + 1))
        expected = (before - step_size(optimizer) * average / (square.sqrt() + 1e-8)) / (1.0 + config.lr * weight_decay)
        torch.testing.assert_close(vector(model), expected, rtol=1e-6, atol=1e-8)
        sizes.append(step_size(optimizer))
    assert len(set(sizes)) > 1


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_step_size_of_momo(weight_decay):
    config = configured("momo", weight_decay=weight_decay, lr=3.0)
    model = network(torch.float64)
    optimizer, criterion = make_optimizer(model, config), make_loss(config)
    sizes = []
    for number in range(30):
        before = vector(model)
        train(model, optimizer, criterion, range(number, number + 1))
        average = parameters_to_vector([optimizer.state[p]["grad_avg"] for p in model.parameters()])
        expected = (before - step_size(optimizer) * average) / (1.0 + config.lr * weight_decay)
        torch.testing.assert_close(vector(model), expected, rtol=1e-8, atol=1e-10)
        sizes.append(step_size(optimizer))
    assert 0.0 < min(sizes) < config.lr == max(sizes), "with and without the cap"


def test_step_sizes_of_the_other_methods():
    for name in COORDINATEWISE:
        model = network()
        optimizer = make_optimizer(model, configured(name))
        train(model, optimizer, make_loss(configured(name)), range(2))
        assert step_size(optimizer) is None
    model = network()
    prodigy = make_optimizer(model, configured("prodigy", lr=0.5))
    assert step_size(prodigy) is None
    train(model, prodigy, make_loss(configured("prodigy")), range(50))
    assert step_size(prodigy) == 0.5 * prodigy.param_groups[0]["d"]
    assert step_size(prodigy) > 1e-4, "it has grown from 1e-6"


def test_dog_is_evaluated_at_the_average_of_its_iterates():
    model = network(torch.float64)
    config = configured("dog", lr=30.0)
    optimizer, criterion = make_optimizer(model, config), make_loss(config)
    assert optimizer.param_groups[0]["reps_rel"] == 1e-4, "advised for batch normalisation"
    average = statistics = torch.tensor(math.nan)
    for t in range(1, 8):
        train(model, optimizer, criterion, range(t, t + 1))
        weight = 9.0 / (t + 8.0)
        average = vector(model) if t == 1 else (1.0 - weight) * average + weight * vector(model)
        mean = model[1].running_mean.clone()
        statistics = mean if t == 1 else (1.0 - weight) * statistics + weight * mean
        with evaluating(optimizer):
            torch.testing.assert_close(vector(model), average)
            torch.testing.assert_close(model[1].running_mean, statistics)


@pytest.mark.parametrize("radius", [None, 1.0])
def test_schedule_free_by_its_definition(radius):
    """A literal twin with the three sequences of the paper and projected steps."""
    model = nn.Linear(5, 3).double()
    beta, lr = 0.9, 1.0
    optimizer = make_optimizer(model, configured("schedule-free", momentum=beta, lr=lr, radius=radius))
    z = x = vector(model)
    for t in range(10):
        train(model, optimizer, nn.CrossEntropyLoss(), range(t, t + 1))
        z = z - lr * parameters_to_vector([p.grad for p in model.parameters()])
        if radius is not None:
            z = z * min(1.0, radius / z.norm().item())
        x = (1.0 - 1.0 / (t + 1)) * x + z / (t + 1)
        torch.testing.assert_close(vector(model), (1.0 - beta) * z + beta * x, rtol=1e-9, atol=1e-9)
        with evaluating(optimizer):
            torch.testing.assert_close(vector(model), x, rtol=1e-9, atol=1e-9)
    assert radius is None or z.norm() == pytest.approx(radius), "the ball was reached"


def test_schedule_free_adamw_by_its_definition():
    """A literal twin with the steps of Adam without momentum."""
    model = nn.Linear(5, 3).double()
    optimizer = make_optimizer(model, configured("schedule-free-adamw", lr=0.1))
    gradients = []  # the library writes over them
    optimizer.register_step_pre_hook(
        lambda *_: gradients.append(parameters_to_vector([p.grad.clone() for p in model.parameters()]))
    )
    z = x = vector(model)
    square = torch.zeros_like(z)
    for t in range(1, 11):
        train(model, optimizer, nn.CrossEntropyLoss(), range(t, t + 1))
        gradient = gradients[-1]
        square = 0.999 * square + 0.001 * gradient**2
        z = z - 0.1 * gradient / ((square / (1.0 - 0.999**t)).sqrt() + 1e-8)
        x = (1.0 - 1.0 / t) * x + z / t
        torch.testing.assert_close(vector(model), 0.1 * z + 0.9 * x, rtol=1e-9, atol=1e-9)
        with evaluating(optimizer):
            torch.testing.assert_close(vector(model), x, rtol=1e-9, atol=1e-9)


def test_stepping_while_evaluating_is_an_error():
    for name in ("borat", "schedule-free", "dog"):
        model = network()
        optimizer = make_optimizer(model, configured(name))
        train(model, optimizer, nn.CrossEntropyLoss(), range(1))
        with evaluating(optimizer), pytest.raises(Exception, match=r"train\(\)|train mode"):
            train(model, optimizer, nn.CrossEntropyLoss(), range(1))


# Several processes


def _train_together(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    assert not {"pytorch_optimizer", "momo", "prodigyopt", "schedulefree", "dog"} & set(sys.modules), (
        "needed by no other"
    )
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    outcomes = {}
    for name in ("sgd", "momo", "momo-adam", *OWN):
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double())
        outcomes[name] = _train_on_part(rank, model, configured(name))
    whole = StateDictOptions(full_state_dict=True)
    for name in ("sgd", "schedule-free", *OWN):
        torch.manual_seed(0)
        model = fully_shard(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double())
        optimizer = make_optimizer(model, configured(name, radius=3.0))
        _train_on_part(rank, model, configured(name), optimizer, range(3))
        if optimizer.state:  # torch cannot load the state of an optimizer that has no tensors in it
            states = get_state_dict(model, optimizer, options=whole)
            torch.manual_seed(1)
            model = fully_shard(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double())
            optimizer = make_optimizer(model, configured(name, radius=3.0))
            set_state_dict(model, optimizer, model_state_dict=states[0], optim_state_dict=states[1], options=whole)
        outcomes[f"{name}, sharded"] = _train_on_part(rank, model, configured(name), optimizer, range(3, 6))
    for name in ("momo", "momo-adam", "prodigy", "dog"):
        with pytest.raises(ValueError, match=f"{name} cannot train a sharded model: use ddp"):
            make_optimizer(model, configured(name))
    torch.save(outcomes, f"{folder}/outcomes-{rank}.pt")
    dist.destroy_process_group()


def _train_on_part(rank: int, model: nn.Module, config: RunConfig, optimizer=None, numbers: range = range(6)) -> Tensor:
    optimizer = optimizer or make_optimizer(model, config)
    criterion = make_loss(config)
    for number in numbers:
        x, y = batch(number)
        x, y = x.chunk(2)[rank], y.chunk(2)[rank]
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        take_step(optimizer, loss)
    return torch.cat([getattr(p, "full_tensor", lambda p=p: p)().detach().flatten() for p in model.parameters()])


def test_two_processes_take_the_steps_of_one(tmp_path):
    together = [start_warm(_train_together, rank, str(tmp_path)) for rank in range(2)]
    for process in together:
        process.join(timeout=240)
    assert [process.exitcode for process in together] == [0, 0]
    outcomes = [torch.load(tmp_path / f"outcomes-{rank}.pt") for rank in range(2)]
    for key, point in outcomes[0].items():
        assert torch.equal(point, outcomes[1][key]), f"{key}: the processes have drifted apart"
        name, _, sharded = key.partition(",")
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
        config = configured(name, radius=3.0 if sharded else None)
        train(model, make_optimizer(model, config), make_loss(config), range(6))
        torch.testing.assert_close(point, vector(model), rtol=1e-9, atol=1e-10, msg=key)


# Schedules


def rates(
    schedule: str, epochs: int, batches: int = 2, data: str = "cifar10", accuracies=None, stop: int | None = None
):
    """Return the learning rate of each batch, with an interruption after ``stop`` epochs."""
    config = RunConfig(optimizer="sgd", lr=1.0, schedule=schedule, epochs=epochs, data=data)

    def fresh():
        w = nn.Linear(1, 1)
        optimizer = make_optimizer(w, config)
        return optimizer, make_schedule(optimizer, config, batches)

    optimizer, plan = fresh()
    found = []
    for epoch in range(epochs):
        if epoch == stop:
            saved = through_a_file([optimizer.state_dict(), plan.state_dict()])
            optimizer, plan = fresh()
            optimizer.load_state_dict(saved[0])
            plan.load_state_dict(saved[1])
        for _ in range(batches):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            plan.after_batch()
        plan.after_epoch(accuracies[epoch] if accuracies else 0.0)
    return found


def piecewise(epochs: int, factor: float, *milestones: int) -> list[float]:
    return [factor ** sum(epoch >= m for m in milestones) for epoch in range(epochs)]


@pytest.mark.parametrize(
    ("schedule", "data", "epochs", "expected"),
    [
        ("constant", "cifar10", 5, [1.0] * 5),
        ("manual", "cifar10", 200, piecewise(200, 0.2, 60, 120, 160)),
        ("manual", "cifar100", 10, piecewise(10, 0.2, 3, 6, 8)),
        ("manual", "svhn", 160, piecewise(160, 0.1, 80, 120)),
        ("manual", "cifar10", 1, [1.0]),
        ("piecewise", "cifar10", 300, piecewise(300, 0.1, 150, 225)),
        ("piecewise", "svhn", 8, piecewise(8, 0.1, 4, 6)),
        ("geometric", "cifar10", 7, [1.0, 1.0, 0.94, 0.94, 0.94**2, 0.94**2, 0.94**3]),
    ],
)
def test_schedules_by_epoch(schedule, data, epochs, expected):
    found = rates(schedule, epochs, data=data)
    assert found[::2] == pytest.approx(expected)
    assert found[1::2] == pytest.approx(expected)
    assert rates(schedule, epochs, data=data, stop=epochs // 2) == found


def cosine_at(position: float) -> float:
    """Return the factor at a position in cycles of the lengths 1, 2, 4 and 8."""
    start, length = 0.0, 1.0
    while position >= start + length:
        start, length = start + length, 2.0 * length
    return 0.5 * (1.0 + math.cos(math.pi * (position - start) / length))


def test_cosine_restarts_three_times_and_ends_with_the_budget():
    found = rates("cosine", epochs=30, batches=4)
    expected = [0.5 * (1.0 + math.cos(math.pi * i / length)) for length in (8, 16, 32, 64) for i in range(length)]
    assert found == pytest.approx(expected)
    assert rates("cosine", epochs=30, batches=4, stop=13) == found

    uneven = rates("cosine", epochs=3, batches=16)
    assert uneven == pytest.approx([cosine_at(15.0 * i / 48.0) for i in range(48)])
    assert uneven[-1] < 0.01, "even if 15 does not divide the budget"


def test_warm_ups_and_single_cosines():
    """The rate rises in equal steps over a twentieth of 40 batches, which is two."""
    rise, fall = [1 / 3, 2 / 3], [0.5 * (1.0 + math.cos(math.pi * i / 38)) for i in range(38)]
    expected = {
        "one-cosine": [0.5 * (1.0 + math.cos(math.pi * i / 40)) for i in range(40)],
        "warmup": rise + [1.0] * 38,
        "warmup-cosine": rise + fall,
    }
    for schedule, wanted in expected.items():
        found = rates(schedule, epochs=10, batches=4)
        assert found == pytest.approx(wanted)
        assert rates(schedule, epochs=10, batches=4, stop=7) == found


def test_plateau_divides_by_five_without_a_new_best():
    accuracies = [0.5, 0.6, 0.6, 0.55, 0.61, 0.7, 0.69]
    found = rates("plateau", epochs=7, batches=1, accuracies=accuracies)
    assert found == pytest.approx([1.0, 1.0, 1.0, 0.2, 0.04, 0.04, 0.04])
    for stop in range(7):
        assert rates("plateau", epochs=7, batches=1, accuracies=accuracies, stop=stop) == found


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", METHODS)
def test_every_schedule_with_every_optimizer(name, schedule):
    config = configured(name, schedule=schedule, epochs=5)
    model = network()
    optimizer, criterion = make_optimizer(model, config), make_loss(config)
    plan = make_schedule(optimizer, config, 3)
    used = set()
    for epoch in range(5):
        losses = train(model, optimizer, criterion, range(3 * epoch, 3 * epoch + 3), plan)
        used.add(optimizer.param_groups[0]["lr"])
        plan.after_epoch(0.5)
        assert all(map(math.isfinite, losses))
    assert (used == {config.lr}) == (schedule in ("constant", "warmup"))


# Errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make(optimizer="sdg"), r"unknown optimizer 'sdg'; did you mean 'sgd'\?"),
        (lambda: make(optimizer="L4mo"), "unknown optimizer 'L4mo'; did you mean 'l4mom'"),
        (lambda: make(optimizer="?"), r"unknown optimizer '\?'; known are sgd, heavy-ball, alig, borat"),
        (
            lambda: make(optimizer="borat", weight_decay=0.1),
            "weight_decay does not apply to borat: use radius, got 0.1",
        ),
        (lambda: make(optimizer="alig", weight_decay=0.1), "weight_decay does not apply to alig: use radius, got 0.1"),
        (lambda: make(optimizer="dfw", loss="ce"), "loss must be smooth-hinge or hinge for dfw, got 'ce'"),
        (
            lambda: make(optimizer="schedule-free", momentum=0.0),
            "momentum must be between 0 and 1 for schedule-free, got 0",
        ),
        (lambda: make_schedule(make(), RunConfig(), 0), "batches must be an integer of at least 1, got 0"),
        (lambda: DFW([weights(1.0)], lr=-1.0), "lr must be a number of at least 0, got -1.0"),
        (lambda: BPGrad([weights(1.0)], lr=0.1, momentum=1.0), r"momentum must be a number in \[0, 1\), got 1.0"),
        (
            lambda: DFW([weights(1.0)], lr=0.1, weight_decay=-1.0),
            "weight_decay must be a finite number of at least 0, got -1.0",
        ),
        (lambda: SPS([weights(1.0)], lr=1.0).step(), "step needs the loss of the batch"),
        (lambda: SPS([weights(1.0)], lr=1.0).step(loss=torch.ones(2)), "loss must have one element"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def make(**options):
    return make_optimizer(network(), RunConfig(**options))


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_has_a_value(loss):
    scores, labels = torch.randn(4, 10, requires_grad=True), torch.arange(4)
    value = make_loss(RunConfig(loss=loss))(scores, labels)
    value.backward()
    assert value > 0.0
    assert scores.grad.any()


@pytest.mark.parametrize(
    ("name", "library", "module"),
    [
        ("yogi", "pytorch_optimizer", "pytorch_optimizer"),
        ("momo", "momo", "borat.lab.baselines.momo"),
        ("prodigy", "prodigyopt", "prodigyopt"),
        ("schedule-free", "schedulefree", "borat.lab.baselines.schedule_free"),
        ("dog", "dog", "borat.lab.baselines.dog"),
    ],
)
def test_a_missing_library_is_named(monkeypatch, name, library, module):
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ValueError, match=rf"{library}.*pip install 'borat\[peers\]'"):
        make_optimizer(network(), configured(name))
