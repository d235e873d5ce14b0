"""Run a task as the lab runs training: from a configuration, into a folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from borat.lab.baselines import make_optimizer
from borat.lab.config import RunConfig
from borat.lab.store.lock import exclusive
from borat.lab.store.run import Metrics, Run
from borat.lab.tasks import TaskResult, TrainingTask, find_task, run
from borat.lab.training.processes import without_denormals

PATIENCE = 5.0
"""Seconds to wait for another process that is about to leave the run's folder."""

LAST = 20
"""Batches whose mean is the training loss of a run."""


def train_task(config: RunConfig, folder: Path) -> Metrics:
    """Train a task in a folder of its own; a run that is done there is not repeated."""
    assert config.task is not None
    task = find_task(config.task)
    with exclusive(folder, PATIENCE), without_denormals():
        stored = Run.create(folder, config)
        if stored.metrics.is_done:
            return stored.metrics
        result = run(
            task,
            partial(make_optimizer, config=config),
            config.seed,
            schedule=config.schedule,
            steps=config.steps,
            shift=config.shift or 0.0,
            clip=config.clip,
        )
        metrics = _metrics(task, config, result)
        stored.write_metrics(metrics)
    return metrics


def _metrics(task: TrainingTask, config: RunConfig, result: TaskResult) -> Metrics:
    """Return what the store keeps: scores are losses there, and where more is better, their reciprocals."""
    scores = {"validation": result.validation_score, "test": result.score}
    losses = {f"{split}_loss": task.as_loss(score) for split, score in scores.items()}
    ends = [sum(values[-LAST:]) / len(values[-LAST:]) for values in result.losses.values()]
    epoch: dict[str, Any] = {"epoch": 0, "seconds": result.seconds, "lr": config.lr, "step_size": None, "kinds": {}}
    epoch |= {"train_loss": sum(ends), "validation_loss": losses["validation_loss"]}
    named = {} if task.lower_is_better else {f"{split}_{task.metric}": score for split, score in scores.items()}
    return Metrics(result.status, [epoch], losses | named)
