"""A scoreboard: each method at its default learning rate, and at the best of its grid.

Methods are compared by the error, 1 - accuracy, or by the loss of a task. A run that diverged, failed, or is worse than
guessing counts as guessing: an error of 1 - 1/k or a loss of log k, for k classes. So every method has a finite number
on every task.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from borat.lab.metrics import Mean, lower_is_better, metric_text, unit, value_text
from borat.lab.reproduce.kinds.ratios import summarise, with_mean
from borat.lab.reproduce.run import Cell, CellResult, Result
from borat.lab.reproduce.training import ColumnTable, Layer, MetricName, TrainingSpec, varied_keys
from borat.lab.robustness import LOSS_MARGIN, MARGIN
from borat.lab.store.records import curve
from borat.lab.strict import Listed
from borat.lab.sweeps.grid import expand
from borat.lab.tables import DASH, Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FLOOR = 1e-3
"""A smaller error or loss counts as this in a ratio: a method without any error is not infinitely better."""
POINTS = 0.01
"""Goal for tasks with an accuracy: at most this far from the best, in absolute terms (1 point)."""
LOSS_SHARE = 0.02
"""Goal for other tasks: at most this share above the lowest loss."""
RATIO_TITLE = "Error or loss over that of the best tuned method"


class BoardColumn(ColumnTable):
    """A task; its metrics override those of the file."""

    metric: MetricName = ""
    select_on: MetricName = ""


class ScoreboardSpec(TrainingSpec):
    """All methods on all tasks, at their defaults and tuned; every column may have its own metric."""

    columns: Listed[BoardColumn] = ()
    goal: Listed[str] = ()
    """Methods that should need no tuning: as good at their defaults as the best tuned method."""

    @model_validator(mode="after")
    def _check_board(self) -> Self:
        for method in self.methods:
            if method.columns:
                got = ", ".join(method.columns)
                raise ValueError(f"{method.name} must be in all columns of a scoreboard, got {got}")
        self.check_places(self.goal, ())
        return self

    def metrics_in(self, column: str) -> tuple[str, str]:
        table = next(table for table in self.columns if table.name == column)
        return table.metric or self.metric, table.select_on or self.select_on

    def make_cell(self, method: str, column: str, layer: Layer) -> Cell:
        cell = super().make_cell(method, column, layer)
        others = {key: value for key, value in layer.items() if key != "lr"}
        if varied := varied_keys(others):
            raise ValueError(f"a scoreboard tries several values of lr only, got several of {', '.join(varied)}")
        defaults = expand(others)
        return replace(cell, configs=tuple(dict.fromkeys((*cell.configs, *defaults))), defaults=tuple(defaults))

    def tables(self, result: Result) -> list[Table]:
        name, board = result.study.heading, make_board(result)
        shown = [
            _scores(self, f"{name}: at their defaults", board.defaults),
            _scores(self, f"{name}: tuned", board.tuned),
            _overall(board),
            _cell_table(
                "Usable learning rates, a factor of ten apart",
                result,
                lambda cell: f"{result.usable(cell).sum()} of {len(cell.settings)}",
            ),
            _cell_table(
                "Training objective reached: at their defaults, tuned",
                result,
                lambda cell: f"{_objective(cell.defaults)}, {_objective(cell.chosen)}",
            ),
        ]
        return [*shown, _goal(self, board)] if self.goal else shown

    def remarks(self, result: Result) -> list[str]:
        return [
            "At its defaults, a method has the learning rate that its authors or its library advise. Tuned, it has the "
            "learning rate of its grid with the best validation result after the last epoch, with the first seed. The "
            "tables show test results after the last epoch.",
            "Bold: within one standard error of the best, using the standard error of the best. ± is the standard "
            "deviation over the seeds.",
            "A run that diverged, failed, or is worse than guessing counts as guessing: an accuracy of 1/k, a loss of "
            "log k, for k classes. Nothing is left out of a mean.",
            "The ratio is a method's error (1 - accuracy) or loss to that of the best tuned method on the task; "
            f"overall is the geometric mean over the tasks. Errors and losses below {FLOOR:g} count as {FLOOR:g}.",
            f"Usable: with the first seed, at most {100 * MARGIN:g} points or {100 * LOSS_MARGIN:g} % of the loss from "
            "the best run of all methods on the task.",
            f"The seeds are {', '.join(map(str, result.study.seeds))}.",
        ]

    def draw(self, result: Result) -> Figure:
        from borat.lab.reproduce.picture import draw_ratios  # imports Matplotlib, which the tables do not need

        board = make_board(result)
        panels = {"at their defaults": board.defaults, "tuned": board.tuned}
        ratios = {name: with_mean(board.ratios(scores)) for name, scores in panels.items()}
        return draw_ratios(f"{self.title}: {RATIO_TITLE.lower()}", ratios)


# Numbers


@dataclass(frozen=True)
class Score(Mean):
    """The error or loss of a method on a task, over the seeds."""

    lost: int = 0
    """Number of seeds that diverged or failed, and count as guessing."""

    def text(self, metric: str) -> str:
        """Return the score as an accuracy or a loss."""
        mean = self.mean if lower_is_better(metric) else 1.0 - self.mean
        spread = "" if self.std is None else f" ± {value_text(metric, self.std, spread=True)}"
        lost = f" ({self.lost} of {self.runs} lost)" if self.lost else ""
        return value_text(metric, mean) + spread + lost


@dataclass(frozen=True)
class Board:
    """The :class:`Score` of each method (row) on each task (column)."""

    defaults: pd.DataFrame
    tuned: pd.DataFrame

    def best(self, column: str) -> str:
        """Return the best tuned method on a task."""
        return str(_means(self.tuned)[column].idxmin())

    def ratios(self, scores: pd.DataFrame) -> pd.DataFrame:
        """Return the errors or losses over those of the best tuned method on each task."""
        return _means(scores).clip(lower=FLOOR) / _means(self.tuned).min().clip(lower=FLOOR)

    def ranking(self) -> list[str]:
        """Return the methods at their defaults, the best over all tasks first."""
        return list(summarise(self.ratios(self.defaults))["mean"].sort_values(kind="stable").index)

    def excess(self, method: str, column: str, metric: str) -> tuple[float, bool]:
        """Return the distance of a method at its defaults to the best tuned one, and True if it meets the goal.

        The distance is the difference of the errors, or the share by which the loss is higher.
        """
        ours, best = self.defaults.loc[method, column].mean, self.tuned.loc[self.best(column), column].mean
        is_loss = lower_is_better(metric)
        excess = ours / max(best, FLOOR) - 1.0 if is_loss else ours - best
        return excess, excess <= (LOSS_SHARE if is_loss else POINTS) + 1e-12


def _means(scores: pd.DataFrame) -> pd.DataFrame:
    return scores.map(lambda score: score.mean)


def make_board(result: Result) -> Board:
    import pandas as pd  # slow to import, and not needed to list experiments

    seeds = max(len(cell.defaults) for cell in result.cells)
    tables = [pd.DataFrame(index=result.methods, columns=result.columns, dtype=object) for _ in range(2)]
    for cell in result.cells:
        method, column = cell.cell.method, cell.cell.column
        for table, runs in zip(tables, (cell.defaults, cell.chosen), strict=True):
            table.at[method, column] = _score(
                runs, result.spec.metrics_in(column)[0], result.data[column].num_classes, seeds
            )
    return Board(*tables)


def _score(runs: pd.DataFrame, metric: str, classes: int, seeds: int) -> Score:
    """Return the score of a configuration from its runs with each seed; there are none if no configuration worked."""
    values = runs.value.dropna()
    guess = math.log(classes) if lower_is_better(metric) else 1.0 - 1.0 / classes
    costs = [min(value if lower_is_better(metric) else 1.0 - value, guess) for value in values]
    lost = seeds - len(costs)
    costs += [guess] * lost
    return Score(statistics.fmean(costs), statistics.stdev(costs) if seeds > 1 else None, seeds, lost)


# Tables


def _scores(spec: ScoreboardSpec, title: str, scores: pd.DataFrame) -> Table:
    heads, texts = ["method"], {}
    for column in scores:
        metric, found = spec.metrics_in(column)[0], scores[column]
        heads.append(f"{column}, {metric_text(metric).removeprefix('test ')}")
        best = min(found, key=lambda score: score.mean)
        limit = best.mean + (best.std or 0.0) / math.sqrt(best.runs)
        texts[column] = [f"**{s.text(metric)}**" if s.mean <= limit else s.text(metric) for s in found]
    return Table(title, tuple(heads), list(zip(scores.index, *texts.values(), strict=True)))


def _overall(board: Board) -> Table:
    found = [summarise(board.ratios(scores)) for scores in (board.defaults, board.tuned)]
    rows = []
    for method in board.ranking():
        at = [summary.loc[method] for summary in found]
        rows.append((method, *(text for s in at for text in (f"{s['mean']:.3f}", f"{s['worst']:.2f}, {s['task']}"))))
    head = ("method", "defaults, overall", "defaults, worst ratio", "tuned, overall", "tuned, worst ratio")
    return Table(RATIO_TITLE, head, rows)


def _cell_table(title: str, result: Result, text: Callable[[CellResult], str]) -> Table:
    """Return a table with a text for each method in each column."""
    columns = [[text(cell) for cell in result.in_column(column)] for column in result.columns]
    return Table(title, ("method", *result.columns), list(zip(result.methods, *columns, strict=True)))


def _objective(runs: pd.DataFrame) -> str:
    """Return the mean over the seeds that worked, in the last epoch."""
    found = [curve(history, "train_loss")[-1] for history in runs.history[runs.value.notna()]]
    return value_text("train_loss", statistics.fmean(found)) if found else DASH


def _goal(spec: ScoreboardSpec, board: Board) -> Table:
    """Return the distance of each method in the goal from the best tuned one."""
    ranking, words = board.ranking(), {True: "met", False: "missed"}
    overall = summarise(board.ratios(board.defaults))["mean"]
    methods = [name for name in spec.goal if name in ranking]
    rows = []
    for method in methods:
        for column in board.tuned:
            metric, rival = spec.metrics_in(column)[0], board.best(column)
            excess, is_met = board.excess(method, column, metric)
            ours = board.defaults.loc[method, column].text(metric)
            best = f"{board.tuned.loc[rival, column].text(metric)}, {rival}"
            distance = f"{100 * excess:.1f} {'points' if unit(metric) == 100.0 else '%'}"
            rows.append((f"{method}, {column}", ours, best, distance, words[is_met]))
    for method in methods:
        first = f"{overall[ranking[0]]:.3f}, {ranking[0]}"
        place = f"place {ranking.index(method) + 1} of {len(ranking)}"
        rows.append((f"{method}, overall", f"{overall[method]:.3f}", first, place, words[method == ranking[0]]))
    title = (
        f"The goal: at its defaults within {100 * POINTS:g} point or {100 * LOSS_SHARE:g} % of the loss of the best "
        "tuned method on every task, and overall first of all methods at their defaults"
    )
    return Table(title, ("method and task", "at its defaults", "best", "behind", "goal"), rows)


KIND = ScoreboardSpec
