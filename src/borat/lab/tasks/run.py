"""The training loop of all tasks, with schedules, evaluation, loss shifts and gradient clipping."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from borat.lab.baselines import evaluating, is_lost, make_schedule, needs_flush, take_step
from borat.lab.config import RunConfig
from borat.lab.tasks.task import TrainingTask

SCORE_SEEDS = {"validation": 1_000_000, "test": 1_000_001}
"""Seeds of the random numbers that a score draws, by split."""


@dataclass(frozen=True)
class TaskResult:
    """Scores and training losses of one run. A run that diverged has the worst possible scores."""

    score: float
    """Score on the test split."""
    validation_score: float
    """Score on the validation split, for choosing learning rates."""
    losses: dict[str, list[float]] = field(repr=False)
    """Training loss of each batch, by network, without the shift."""
    seconds: float
    """Duration of the training, without evaluation."""
    status: str = "finished"
    """``"finished"`` or ``"diverged"``."""


def run(
    task: TrainingTask,
    make_optimizer: Callable[[nn.Module], Optimizer],
    seed: int = 0,
    *,
    schedule: str = "constant",
    steps: int | None = None,
    shift: float = 0.0,
    clip: float | None = None,
) -> TaskResult:
    """Train a task's model and score it.

    Args:
        task: the task, see :func:`borat.lab.tasks.find_task`.
        make_optimizer: returns the optimizer of a network; called once for each network of the task.
        seed: seed of the initial weights and of all other random numbers in training.
        schedule: one of :data:`borat.lab.config.BATCH_SCHEDULES`, over all steps.
        steps: number of batches; the task's own number by default.
        shift: added to each loss that the optimizer sees; gradients do not change.
        clip: maximum norm of each network's gradient, or None for no clipping.
    """
    config = RunConfig(task=type(task).__name__, seed=seed, schedule=schedule, steps=steps, shift=shift, clip=clip)
    steps = config.steps or task.steps
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = task.build().train()
        learners = {
            name: _Learner(network, make_optimizer(network), config, steps)
            for name, network in task.networks(model).items()
        }
        start = time.perf_counter()
        batches = islice(task.batches(model), steps)
        batch_losses = (pair for batch in batches for pair in task.losses(model, batch))
        has_diverged = any(not learners[name].learn(loss) for name, loss in batch_losses)
        optimizers: list[Any] = [learner.optimizer for learner in learners.values()]
        for optimizer in filter(needs_flush, optimizers):
            optimizer.flush()
        seconds = time.perf_counter() - start
        validation, test = _scores(task, model, optimizers)
    losses = {name: learner.losses for name, learner in learners.items()}
    if math.isfinite(validation) and math.isfinite(test) and not has_diverged:
        return TaskResult(test, validation, losses, seconds)
    worst = math.inf if task.lower_is_better else 0.0
    return TaskResult(worst, worst, losses, seconds, "diverged")


class _Learner:
    """A network with its optimizer, its schedule and its training losses."""

    def __init__(self, network: nn.Module, optimizer: Optimizer, config: RunConfig, steps: int) -> None:
        self.network, self.optimizer, self.config = network, optimizer, config
        self.schedule = make_schedule(optimizer, config, steps)
        self.losses: list[float] = []

    def learn(self, loss: Tensor) -> bool:
        """Take a step; return False if training cannot continue."""
        self.losses.append(loss.item())
        if is_lost(self.optimizer, self.losses[-1]):
            return False
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.config.clip is not None:
            clip_grad_norm_(self.network.parameters(), self.config.clip)
        take_step(self.optimizer, loss.detach() + (self.config.shift or 0.0))
        self.schedule.after_batch()
        return True


def _scores(task: TrainingTask, model: nn.Module, optimizers: list[Optimizer]) -> list[float]:
    """Return the validation and test scores at the optimizers' results."""
    scores = []
    with torch.no_grad(), ExitStack() as stack:
        for optimizer in optimizers:
            stack.enter_context(evaluating(optimizer))
        model.eval()
        for split, seed in SCORE_SEEDS.items():
            torch.manual_seed(seed)
            scores.append(float(task.score(model, split)))
    return scores
