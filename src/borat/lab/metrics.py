"""Metrics: names, directions, means and formatting. Accuracies are between 0 and 1, and printed in percent."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

METRICS = tuple(
    f"{split}_{name}"
    for split in ("train", "validation", "test", "fit")
    for name in ("accuracy", "loss", "top5_accuracy", "perplexity")
)
"""Metrics in the records of a run. ``train`` is the mean over the batches of an epoch during training; ``fit`` is
measured at the end of the run, on the training examples without augmentation, with the weights of the result."""


def lower_is_better(metric: str) -> bool:
    return metric.endswith(("loss", "perplexity"))


def primary_measure(metrics: Iterable[str]) -> str:
    """Return the measure by which runs with these metrics are compared: the accuracy or, if there is none, the loss.

    >>> primary_measure(["test_loss", "test_accuracy"]), primary_measure(["test_loss", "test_perplexity"])
    ('accuracy', 'loss')
    """
    return "accuracy" if any(metric.endswith("accuracy") for metric in metrics) else "loss"


def primary_result(record: Mapping[str, Any], *splits: str) -> tuple[str, float] | None:
    """Return the metric by which a run is compared, of the first of these splits that has it, and its value.

    >>> primary_result({"train_loss": 0.1, "test_loss": 1.5, "test_accuracy": 0.9}, "test", "validation")
    ('test_accuracy', 0.9)
    """
    names = (f"{split}_{primary_measure(record)}" for split in splits)
    return next(((name, record[name]) for name in names if record.get(name) is not None), None)


def unseen(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measurements on examples outside of the training split.

    >>> unseen({"test_loss": 1.5, "fit_loss": 0.1})
    {'test_loss': 1.5}
    """
    return {name: value for name, value in result.items() if not name.startswith("fit_")}


def goodness(metric: str, value: float) -> float:
    """Return a measurement, negated if lower is better."""
    return -value if lower_is_better(metric) else value


def unit(metric: str) -> float:
    """Return the factor for printing: 100 for accuracies, 1 for other metrics."""
    return 100.0 if metric.endswith("accuracy") else 1.0


def metric_text(metric: str) -> str:
    """Return the name of a measurement and its unit.

    >>> metric_text("test_accuracy"), metric_text("train_loss"), metric_text("fit_accuracy")
    ('test accuracy, %', 'training objective', 'training accuracy, %')
    """
    if metric == "train_loss":
        return "training objective"
    return metric.replace("fit_", "training ").replace("_", " ") + (", %" if unit(metric) == 100.0 else "")


def value_text(metric: str, value: float, *, spread: bool = False) -> str:
    """Return the text of a measurement, or of its spread, without its unit.

    >>> value_text("test_accuracy", 0.7654), value_text("test_accuracy", 0.0123, spread=True)
    ('76.5', '1.23')
    >>> value_text("test_loss", 0.7654)
    '0.765'
    """
    if unit(metric) == 100.0:
        return f"{100.0 * value:.2f}" if spread else f"{100.0 * value:.1f}"
    return f"{value:.3g}"


def with_unit(metric: str, value: float) -> str:
    """Return the text of a measurement with its unit.

    >>> with_unit("test_accuracy", 0.7654), with_unit("test_loss", 0.7654)
    ('76.5 %', '0.765')
    """
    return value_text(metric, value) + (" %" if unit(metric) == 100.0 else "")


@dataclass(frozen=True)
class Mean:
    """Mean and sample standard deviation; the latter is None for a single value."""

    mean: float
    std: float | None
    runs: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Mean | None:
        """Return the mean of the values that are numbers, or None without any."""
        known = [value for value in values if value is not None and not math.isnan(value)]
        if not known:
            return None
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


def best(items: Iterable[T], score: Callable[[T], float], metric: str) -> T | None:
    """Return the item with the best score, the first of several; None if no score is finite."""
    scored = [(goodness(metric, value), item) for item in items if math.isfinite(value := score(item))]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None
