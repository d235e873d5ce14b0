"""The training loop of all tasks: schedules, evaluation, shifted losses and clipped gradients in one place."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from borat.lab.baselines import Schedule, drops_batches, evaluating, make_schedule, take_step
from borat.lab.config import RunConfig
from borat.lab.tasks.task import TrainingTask

SCHEDULES = ("constant", "cosine", "one-cosine", "warmup", "warmup-cosine")
"""Those of the lab that change the learning rate by batches rather than by epochs."""

SCORE_SEEDS = {"validation": 1_000_000, "test": 1_000_001}
"""Seeds of the random numbers that a score draws, by split."""


@dataclass(frozen=True)
class TaskResult:
    """Scores and training losses of one run; a run that diverged has the worst possible scores."""

    score: float
    """Score on the test split."""
    validation_score: float
    """Score on the validation split, to choose learning rates by."""
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
        seed: seed of the initial weights and of everything random in training.
        schedule: one of :data:`SCHEDULES`, over all steps.
        steps: number of batches, the task's own unless given.
        shift: added to each loss that the optimizer sees; gradients do not change.
        clip: largest norm of a network's gradient, or None for no clipping.
    """
    steps = task.steps if steps is None else steps
    _check(schedule, steps, clip)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = task.build().train()
        learners = {
            name: _Learner(network, make_optimizer(network), schedule, steps, shift, clip)
            for name, network in task.networks(model).items()
        }
        start = time.perf_counter()
        for batch in islice(task.batches(model), steps):
            if not all(learners[name].learn(loss) for name, loss in task.losses(model, batch)):
                break
        seconds = time.perf_counter() - start
        losses = {name: learner.losses for name, learner in learners.items()}
        optimizers = [learner.optimizer for learner in learners.values()]
        validation, test = (_score(task, model, optimizers, split) for split in SCORE_SEEDS)
    if math.isfinite(validation) and math.isfinite(test) and not any(learner.is_lost for learner in learners.values()):
        return TaskResult(test, validation, losses, seconds)
    worst = math.inf if task.lower_is_better else 0.0
    return TaskResult(worst, worst, losses, seconds, "diverged")


class _Learner:
    """A network, its optimizer and its schedule."""

    def __init__(
        self, network: nn.Module, optimizer: Optimizer, schedule: str, steps: int, shift: float, clip: float | None
    ) -> None:
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        self.optimizer, self.shift, self.clip = optimizer, shift, clip
        self.schedule: Schedule = make_schedule(optimizer, RunConfig(schedule=schedule, epochs=1), steps)
        self.losses: list[float] = []

    def learn(self, loss: Tensor) -> bool:
        """Take a step; False if the loss is not finite and the optimizer does not drop such batches."""
        self.losses.append(loss.item())
        if self.is_lost:
            return False
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.clip is not None:
            clip_grad_norm_(self.parameters, self.clip)
        take_step(self.optimizer, loss.detach() + self.shift)
        self.schedule.after_batch()
        return True

    @property
    def is_lost(self) -> bool:
        return not drops_batches(self.optimizer) and not all(map(math.isfinite, self.losses[-1:]))


def _check(schedule: str, steps: int, clip: float | None) -> None:
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)} for a task, got {schedule!r}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if clip is not None and not clip > 0.0:
        raise ValueError(f"clip must be positive or None, got {clip}")


def _score(task: TrainingTask, model: nn.Module, optimizers: list[Optimizer], split: str) -> float:
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for optimizer in optimizers:
            stack.enter_context(evaluating(optimizer))
        stack.enter_context(_evaluation_mode(model))
        torch.manual_seed(SCORE_SEEDS[split])
        return float(task.score(model, split))


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    model.eval()
    try:
        yield
    finally:
        model.train()
