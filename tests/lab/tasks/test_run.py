"""The training loop: shifted losses, clipped gradients, schedules, several networks, and runs that diverge."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from borat import BORAT
from borat.lab.tasks import TrainingTask, run


class Line(TrainingTask):
    """Fit a line."""

    steps = 10

    def build(self):
        return nn.Linear(1, 1)

    def batches(self, model):
        while True:
            x = torch.randn(8, 1)
            yield x, 3.0 * x

    def loss(self, model, batch):
        return (model(batch[0]) - batch[1]).square().mean()

    def score(self, model, split):
        assert not model.training
        assert not torch.is_grad_enabled()
        return float((model.weight - 3.0).abs())


class Pair(Line):
    """Two lines; the second follows the first."""

    def build(self):
        return nn.ModuleDict({"leader": nn.Linear(1, 1), "follower": nn.Linear(1, 1)})

    def networks(self, model):
        return dict(model.items())

    def losses(self, model, batch):
        yield "leader", self.loss(model["leader"], batch)
        self.seen = model["leader"].weight.item()
        yield "follower", (model["follower"].weight - self.seen).square().sum()

    def score(self, model, split):
        return float((model["follower"].weight - model["leader"].weight).abs())


class Recorder(torch.optim.SGD):
    """SGD that records its losses, gradient norms and learning rates."""

    def __init__(self, network: nn.Module, lr: float = 0.1) -> None:
        super().__init__(network.parameters(), lr=lr)
        self.seen, self.norms, self.rates, self.modes = [], [], [], []

    def step(self, closure=None):
        self.seen.append(float(closure()))
        grads = [p.grad.flatten() for p in self.param_groups[0]["params"] if p.grad is not None]
        self.norms.append(float(torch.cat(grads).norm()))
        self.rates.append(self.param_groups[0]["lr"])
        super().step()

    def eval(self):
        self.modes.append("eval")

    def train(self):
        self.modes.append("train")


def record(task: TrainingTask, **options: object) -> tuple[list[Recorder], object]:
    made: list[Recorder] = []

    def make(network: nn.Module) -> Recorder:
        made.append(Recorder(network))
        return made[-1]

    return made, run(task, make, **options)


def test_a_shift_changes_the_loss_and_nothing_else():
    (plain,), result = record(Line())
    (shifted,), other = record(Line(), shift=10.0)
    assert shifted.seen == pytest.approx([loss + 10.0 for loss in plain.seen])
    assert shifted.norms == plain.norms
    assert other.losses == result.losses
    assert other.score == result.score


def test_gradients_are_clipped():
    (plain,), _ = record(Line())
    (clipped,), _ = record(Line(), clip=0.1)
    assert max(plain.norms) > 1.0
    assert clipped.norms == pytest.approx([0.1] * 10, rel=1e-4)


def test_the_schedule_spans_all_steps():
    (optimizer,), _ = record(Line(), schedule="warmup-cosine", steps=100)
    rates = optimizer.rates
    assert rates[0] < rates[4]
    assert max(rates) == pytest.approx(0.1)
    assert rates.index(max(rates)) == 5
    assert rates[-1] < 0.001


def test_the_model_is_scored_at_the_result_of_the_optimizer():
    (optimizer,), _ = record(Line())
    assert optimizer.modes == ["eval", "train"]


def test_each_network_has_its_own_optimizer():
    task = Pair()
    optimizers, result = record(task, steps=5)
    assert len(optimizers) == 2
    assert set(result.losses) == {"leader", "follower"}
    assert all(len(losses) == 5 for losses in result.losses.values())


def test_a_loss_that_is_not_finite_ends_the_run():
    result = run(Line(), lambda network: Recorder(network, lr=1e3), steps=2000)
    assert result.status == "diverged"
    assert result.score == result.validation_score == math.inf
    assert len(result.losses["model"]) < 2000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "plateau"}, "schedule must be one of constant, .* for a task, got 'plateau'"),
        ({"steps": 0}, "steps must be at least 1 or none, got 0"),
        ({"clip": 0.0}, r"clip must be greater than 0 or none, got 0\.0"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        record(Line(), **options)


def test_a_task_without_a_loss_names_the_missing_methods():
    class Nothing(Line):
        loss = TrainingTask.loss

    with pytest.raises(NotImplementedError, match="Nothing must implement loss, or networks and losses"):
        record(Nothing())


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_an_incomplete_bundle_makes_an_update_only_if_it_is_the_only_one(steps):
    flushed = []

    class Flushing(BORAT):
        def flush(self):
            before = self.param_groups[0]["params"][0].detach().clone()
            super().flush()
            flushed.append(not torch.equal(before, self.param_groups[0]["params"][0]))

    run(Line(), lambda network: Flushing(network.parameters(), lr=0.1, bundle_size=3), steps=steps)
    assert flushed == ([True] if steps == 1 else [])
