"""The demonstration: how far can the learning rate be off? Four methods on scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from borat.lab.config import RunConfig
from borat.lab.grid import expand
from borat.lab.jobs import Outcome
from borat.lab.verdict import Trial, Usable, usable

LEARNING_RATES = (0.01, 0.1, 1.0, 10.0, 100.0)
RADII = (8.0, 16.0, 32.0)
TASKS: Mapping[str, Mapping[str, object]] = {
    "cross-entropy": {"loss": "ce"},
    "hinge loss": {"loss": "hinge"},
    "50 % wrong labels": {"label_noise": 0.5},
}
METHODS: Sequence[Mapping[str, object]] = (
    {"optimizer": "sgd"},
    {"optimizer": "alig"},
    {"optimizer": "borat", "bundle_size": 3},
    {"optimizer": "borat", "bundle_size": 5},
)
BASE: Mapping[str, object] = {"data": "digits", "model": "mlp-bn-128-128", "momentum": 0.9, "batch_size": 64}


def configs(epochs: int) -> dict[str, list[RunConfig]]:
    """The runs of each task: all methods at all learning rates and radii."""
    grid = {"lr": LEARNING_RATES, "radius": RADII}
    return {name: expand({**BASE, **task, "epochs": epochs}, grid, METHODS) for name, task in TASKS.items()}


def trials(outcomes: Sequence[Outcome]) -> list[Trial]:
    """What the verdict looks at: the test accuracy, or NaN for a run without one."""
    found = []
    for outcome in outcomes:
        config = outcome.config
        accuracy = outcome.result.get("test_accuracy", float("nan")) if outcome.status == "finished" else float("nan")
        found.append(Trial(config.method, config.lr, config.radius, accuracy))
    return found


def best_by_rate(found: Sequence[Trial], method: str) -> list[float]:
    """The accuracy at each learning rate, with the radius that suits it best; NaN where all diverged."""
    rows = [[t.accuracy for t in found if (t.method, t.lr) == (method, lr)] for lr in LEARNING_RATES]
    return [max((a for a in row if a == a), default=float("nan")) for row in rows]


def verdicts(found: Mapping[str, Sequence[Trial]]) -> dict[str, list[Usable]]:
    """What works for each method, for each task."""
    return {task: usable(of_task) for task, of_task in found.items()}
