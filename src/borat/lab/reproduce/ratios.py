"""Ratios of losses to those of a reference, task by task, and their summary."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from borat.lab.tables import Table

NEAR = 1.05
"""Largest ratio that counts as equal."""

FLOOR = 1e-12
"""Losses below count as this, so that a loss of zero has a ratio."""

PLAIN = "plain"
DASH = "-"

Losses = Mapping[str, Sequence[float]]
"""The losses of all seeds, by task; infinite for a run that diverged."""


@dataclass(frozen=True)
class Row:
    """A method under a condition, such as a shifted loss."""

    method: str
    condition: str
    losses: Losses


@dataclass(frozen=True)
class RatioSummary:
    """Ratios over all tasks in a few numbers."""

    median: float
    geometric_mean: float
    worst: float
    worst_task: str
    near: int
    """Number of tasks with a ratio of at most :data:`NEAR`."""
    tasks: int


def ratios(losses: Losses, reference: Losses) -> dict[str, float]:
    """Return the mean loss over that of the reference, for each task that both have.

    >>> ratios({"vae": [3.0, 5.0], "gan": [math.inf, 1.0]}, {"vae": [2.0], "gan": [1.0]})
    {'vae': 2.0, 'gan': inf}
    """
    means = {task: max(statistics.fmean(values), FLOOR) for task, values in losses.items() if task in reference}
    return {task: mean / max(statistics.fmean(reference[task]), FLOOR) for task, mean in means.items()}


def summarise(found: Mapping[str, float]) -> RatioSummary:
    """Return the summary of ratios by task.

    >>> summarise({"vae": 1.0, "gan": 4.0, "physics": 2.0})
    RatioSummary(median=2.0, geometric_mean=2.0, worst=4.0, worst_task='gan', near=1, tasks=3)
    """
    worst = max(found, key=lambda task: found[task])
    return RatioSummary(
        statistics.median(found.values()),
        math.exp(statistics.fmean(map(math.log, found.values()))),
        found[worst],
        worst,
        sum(ratio <= NEAR for ratio in found.values()),
        len(found),
    )


def ratio_tables(title: str, rows: Sequence[Row], reference: str) -> list[Table]:
    """Return a summary of all rows, geometric means by condition, and the ratios of each task under each condition.

    ``reference`` is the name of a method; its plain row is what all others are compared with.
    """
    base = next(row.losses for row in rows if (row.method, row.condition) == (reference, PLAIN))
    found = {(row.method, row.condition): ratios(row.losses, base) for row in rows}
    methods, conditions = (list(dict.fromkeys(names)) for names in zip(*found, strict=True))
    tables = [_summary(title, found), _by_condition(found, methods, conditions)]
    for condition in conditions:
        present = [method for method in methods if (method, condition) in found]
        lines = [(task, *(_text(found[method, condition].get(task)) for method in present)) for task in base]
        tables.append(Table(f"Ratios by task: {condition}", ("task", *present), lines))
    return tables


Found = Mapping[tuple[str, str], Mapping[str, float]]
"""Ratios by task, of each method under each condition."""


def _summary(title: str, found: Found) -> Table:
    lines: list[tuple[str, ...]] = []
    for (method, condition), by_task in found.items():
        s = summarise(by_task)
        numbers = (f"{s.median:.3f}", f"{s.geometric_mean:.3f}", f"{_text(s.worst)}, {s.worst_task}")
        lines.append((method, condition, *numbers, f"{s.near} of {s.tasks}"))
    head = ("method", "condition", "median", "geometric mean", "worst", f"within {100 * (NEAR - 1):.0f} %")
    return Table(title, head, lines)


def _by_condition(found: Found, methods: Sequence[str], conditions: Sequence[str]) -> Table:
    """Return the geometric means, conditions from left to right."""
    lines: list[tuple[str, ...]] = []
    for method in methods:
        means = (summarise(found[method, c]).geometric_mean if (method, c) in found else None for c in conditions)
        lines.append((method, *map(_text, means)))
    return Table("Geometric mean of the ratios by condition", ("method", *conditions), lines)


def _text(ratio: float | None) -> str:
    if ratio is None:
        return DASH
    return f"{ratio:.3f}" if ratio < 10.0 else f"{ratio:.3g}"
