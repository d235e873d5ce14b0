"""Training of tasks from a configuration, stored in the folder of a run."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from borat.lab.baselines import make_optimizer
from borat.lab.config import RunConfig
from borat.lab.store.run import Metrics, Run
from borat.lab.tasks import TaskResult, TrainingTask, run

LAST_BATCHES = 20
"""Number of last batches whose mean is the training loss of a run."""


def train_task(task: TrainingTask, config: RunConfig, stored: Run) -> Metrics:
    """Train a task and store its metrics; return the stored ones if the run is done."""
    Run.create(stored.path, config)
    metrics = stored.metrics
    if not metrics.is_done:
        shift, keys = config.shift or 0.0, {key: getattr(config, key) for key in ("schedule", "steps", "clip")}
        try:
            result = run(task, partial(make_optimizer, config=config), config.seed, shift=shift, **keys)
        except Exception:
            stored.write_metrics(Metrics("failed"))
            raise
        metrics = _as_metrics(task, config, result)
        stored.write_metrics(metrics)
    return metrics


def _as_metrics(task: TrainingTask, config: RunConfig, result: TaskResult) -> Metrics:
    """Return the metrics of a run, with scores stored as losses: their reciprocals if higher is better."""
    scores = {"validation": result.validation_score, "test": result.score}
    worse = scores if task.lower_is_better else {split: 1.0 / x if x else math.inf for split, x in scores.items()}
    losses = {f"{split}_loss": score for split, score in worse.items()}
    ends = [values[-LAST_BATCHES:] for values in result.losses.values()]
    epoch: dict[str, Any] = {"epoch": 0, "seconds": result.seconds, "lr": config.lr, "step_size": None, "kinds": {}}
    epoch["train_loss"] = sum(sum(values) / len(values) for values in ends if values)
    epoch["validation_loss"] = losses["validation_loss"]
    named = {} if task.lower_is_better else {f"{split}_{task.metric}": score for split, score in scores.items()}
    return Metrics(result.status, [epoch], losses | named)
