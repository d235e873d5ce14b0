"""Measurements: their names, which way is better, and how they are printed. Inside, accuracies are between 0 and 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

METRICS = tuple(
    f"{split}_{name}"
    for split in ("train", "validation", "test", "fit")
    for name in ("accuracy", "loss", "top5_accuracy", "perplexity")
)
"""In the records of a run. ``train`` is the mean over the batches of an epoch while they are trained on; ``fit`` is
measured at the end of the run, on the training examples as they are, with the weights of the result."""


def lower_is_better(metric: str) -> bool:
    return metric.endswith(("loss", "perplexity"))


def judge(metrics: Iterable[str]) -> str:
    """Return the measure that judges a task with these metrics: the accuracy or, if it has none, the loss.

    >>> judge(["test_loss", "test_accuracy"]), judge(["test_loss", "test_perplexity"])
    ('accuracy', 'loss')
    """
    return "accuracy" if any(metric.endswith("accuracy") for metric in metrics) else "loss"


def judged(record: Mapping[str, Any], *splits: str) -> tuple[str, float] | None:
    """Return the metric that judges a run, of the first of these splits that has it, and its value.

    >>> judged({"train_loss": 0.1, "test_loss": 1.5, "test_accuracy": 0.9}, "test", "validation")
    ('test_accuracy', 0.9)
    """
    names = (f"{split}_{judge(record)}" for split in splits)
    return next(((name, record[name]) for name in names if record.get(name) is not None), None)


def unseen(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measurements on examples that were not trained on, which commands print at the end of a run.

    >>> unseen({"test_loss": 1.5, "fit_loss": 0.1})
    {'test_loss': 1.5}
    """
    return {name: value for name, value in result.items() if not name.startswith("fit_")}


def goodness(metric: str, value: float) -> float:
    """The same measurement where higher is better."""
    return -value if lower_is_better(metric) else value


def unit(metric: str) -> float:
    """Return the factor of a printed number: accuracies are printed in percent."""
    return 100.0 if metric.endswith("accuracy") else 1.0


def metric_text(metric: str) -> str:
    """The name of a measurement and its unit.

    >>> metric_text("test_accuracy"), metric_text("train_loss"), metric_text("fit_accuracy")
    ('test accuracy, %', 'training objective', 'training accuracy, %')
    """
    if metric == "train_loss":
        return "training objective"
    return metric.replace("fit_", "training ").replace("_", " ") + (", %" if unit(metric) == 100.0 else "")


def value_text(metric: str, value: float, *, spread: bool = False) -> str:
    """A measurement, or its spread, in its unit.

    >>> value_text("test_accuracy", 0.7654), value_text("test_accuracy", 0.0123, spread=True)
    ('76.5', '1.23')
    >>> value_text("test_loss", 0.7654)
    '0.765'
    """
    if unit(metric) == 100.0:
        return f"{100.0 * value:.2f}" if spread else f"{100.0 * value:.1f}"
    return f"{value:.3g}"


def with_unit(metric: str, value: float) -> str:
    """
    >>> with_unit("test_accuracy", 0.7654), with_unit("test_loss", 0.7654)
    ('76.5 %', '0.765')
    """
    return value_text(metric, value) + (" %" if unit(metric) == 100.0 else "")


def best(items: Iterable[T], score: Callable[[T], float], metric: str) -> T | None:
    """The item with the best score, the first of several; None where no score is a number."""
    scored = [(goodness(metric, value), item) for item in items if math.isfinite(value := score(item))]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None
