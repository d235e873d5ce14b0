"""A scoreboard's numbers: each method on each task at its defaults and tuned, and what that makes over all tasks.

What is compared is the error, 1 - accuracy, or the loss of a task. A run that diverged or failed, and one that is worse
than guessing, counts as guessing: an error of 1 - 1/k or a loss of log k, for k classes. So every method has a number
on every task, and no number is infinite.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from borat.lab.metrics import lower_is_better

if TYPE_CHECKING:
    import pandas as pd

    from borat.lab.reproduce.run import Result

FLOOR = 1e-3
"""A smaller error or loss counts as this one in a ratio: a method without any error is not infinitely better."""
POINTS = 0.01
"""The goal where a task is judged by accuracy: at most this far from the best, in absolute terms (1 point)."""
LOSS_SHARE = 0.02
"""The goal elsewhere: at most this share above the lowest loss."""


@dataclass(frozen=True)
class Score:
    """A method on a task: the error or loss with each seed."""

    costs: tuple[float, ...]
    lost: int = 0
    """Number of seeds that diverged or failed, and count as guessing."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.costs)

    @property
    def std(self) -> float | None:
        return statistics.stdev(self.costs) if len(self.costs) > 1 else None

    @property
    def standard_error(self) -> float:
        return (self.std or 0.0) / math.sqrt(len(self.costs))


def score(runs: pd.DataFrame, metric: str, classes: int, seeds: int) -> Score:
    """Of the runs of a configuration with each seed; without any, no configuration worked."""
    guess = math.log(classes) if lower_is_better(metric) else 1.0 - 1.0 / classes
    values = [float(value) for value in runs.value[runs.works]] if len(runs) else []
    costs = [value if lower_is_better(metric) else 1.0 - value for value in values]
    lost = seeds - len(costs)
    return Score((*(min(cost, guess) for cost in costs), *[guess] * lost), lost)


@dataclass(frozen=True)
class Overall:
    """A method over all tasks."""

    mean: float
    """The geometric mean of its ratios."""
    worst: float
    column: str
    """Column of the worst ratio."""


Scores = Mapping[tuple[str, str], Score]
"""By method and column."""


@dataclass(frozen=True)
class Board:
    """All methods on all tasks."""

    methods: tuple[str, ...]
    columns: tuple[str, ...]
    defaults: Scores
    tuned: Scores

    def best(self, column: str) -> str:
        """The best method on a task, tuned."""
        return min(self.methods, key=lambda method: self.tuned[method, column].mean)

    def ratio(self, scores: Scores, method: str, column: str) -> float:
        """To the best tuned method on the task."""
        best = self.tuned[self.best(column), column]
        return max(scores[method, column].mean, FLOOR) / max(best.mean, FLOOR)

    def overall(self, scores: Scores, method: str) -> Overall:
        ratios = {column: self.ratio(scores, method, column) for column in self.columns}
        worst = max(ratios, key=lambda column: ratios[column])
        return Overall(statistics.geometric_mean(ratios.values()), ratios[worst], worst)

    def ranking(self, scores: Scores) -> list[str]:
        """The methods, the best over all tasks first."""
        return sorted(self.methods, key=lambda method: self.overall(scores, method).mean)


def make_board(result: Result) -> Board:
    seeds = max(len(cell.defaults) for cell in result.cells)
    scores: dict[str, dict[tuple[str, str], Score]] = {"defaults": {}, "chosen": {}}
    for cell in result.cells:
        place = (cell.cell.method, cell.cell.column)
        metric, classes = result.spec.metric_in(cell.cell.column), result.classes[cell.cell.column]
        for name, found in scores.items():
            found[place] = score(getattr(cell, name), metric, classes, seeds)
    return Board(tuple(result.methods), tuple(result.columns), scores["defaults"], scores["chosen"])


@dataclass(frozen=True)
class GoalLine:
    """Distance of a method at its defaults from the best tuned one on a task."""

    method: str
    column: str
    rival: str
    excess: float
    """Of its error, in absolute terms, or of its loss, as a share."""
    allowed: float

    @property
    def is_met(self) -> bool:
        return self.excess <= self.allowed + 1e-12


def goal_lines(board: Board, goal: tuple[str, ...], metrics: Mapping[str, str]) -> list[GoalLine]:
    """One for each method of the goal and each task."""
    lines = []
    for method in (name for name in goal if name in board.methods):
        for column in board.columns:
            rival = board.best(column)
            ours, best = board.defaults[method, column].mean, board.tuned[rival, column].mean
            if lower_is_better(metrics[column]):
                lines.append(GoalLine(method, column, rival, ours / max(best, FLOOR) - 1.0, LOSS_SHARE))
            else:
                lines.append(GoalLine(method, column, rival, ours - best, POINTS))
    return lines
