"""A scoreboard: each method at the learning rate that its authors advise, and at the best of its grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import model_validator

from borat.lab.files import pick
from borat.lab.metrics import METRICS, lower_is_better, metric_text, unit, value_text
from borat.lab.reproduce.board import FLOOR, LOSS_SHARE, POINTS, Board, GoalLine, Score, Scores, goal_lines, make_board
from borat.lab.reproduce.claims import is_near_best
from borat.lab.reproduce.columns import ColumnsSpec
from borat.lab.reproduce.spec import Cell
from borat.lab.reproduce.tables import DASH
from borat.lab.reproduce.training import TrainingSpec
from borat.lab.robustness import LOSS_MARGIN, MARGIN
from borat.lab.store.records import curve
from borat.lab.strict import Listed
from borat.lab.sweeps.grid import Layer, expand
from borat.lab.tables import Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from borat.lab.reproduce.run import Result


class ScoreboardSpec(TrainingSpec):
    """All methods on all tasks, at their defaults and tuned; every column may have a metric of its own."""

    own_keys: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **ColumnsSpec.own_keys,
        "columns": ("name", "metric", "select_on"),
    }
    draws_picture: ClassVar[bool] = True

    goal: Listed[str] = ()
    """Methods that should need no tuning: at their defaults as good as the best that is tuned."""

    @model_validator(mode="after")
    def _check_board(self) -> Self:
        for column in self.columns:
            for key in ("metric", "select_on"):
                if value := getattr(column, key):
                    pick(f"{key} of {column.name}", value, METRICS)
        if self.paper:
            raise ValueError("a scoreboard has no paper, only a goal")
        for method in self.methods:
            if method.columns:
                got = ", ".join(method.columns)
                raise ValueError(f"{method.name} must be in all columns of a scoreboard, got {got}")
        for name in self.goal:
            pick("method", name, [method.name for method in self.methods])
        return self

    def metric_in(self, column: str) -> str:
        return next((table.metric for table in self.columns if table.name == column), "") or self.metric

    def select_on_in(self, column: str) -> str:
        return next((table.select_on for table in self.columns if table.name == column), "") or self.select_on

    def make_cell(self, method: str, column: str, layer: Layer) -> Cell:
        cell = super().make_cell(method, column, layer)
        fixed, grid = ({k: v for k, v in part.items() if k != "lr"} for part in (layer.fixed, layer.grid))
        if varied := [key for key, values in grid.items() if len(values) > 1]:
            raise ValueError(f"a scoreboard tries several values of lr only, got several of {', '.join(varied)}")
        default = expand(fixed, grid)[0]
        return replace(cell, configs=tuple(dict.fromkeys((*cell.configs, default))), default=default)

    def tables(self, result: Result) -> list[Table]:
        name, board = result.study.heading, make_board(result)
        shown = [
            _scores(self, f"{name}: at their defaults", board, board.defaults),
            _scores(self, f"{name}: tuned", board, board.tuned),
            _overall(board),
            _usable(self, result),
            _objectives(result),
        ]
        return [*shown, _goal(self, board)] if self.goal else shown

    def remarks(self, result: Result) -> list[str]:
        return [
            "At its defaults, a method has the learning rate that its authors or its library advise. Tuned, it has the "
            "one of its grid with the best validation result after the last epoch, with the first seed. What is shown "
            "is the test result of the last epoch.",
            "Bold: within one standard error of the best, its own. ± is the standard deviation over the seeds.",
            "A run that diverged or failed, and one that is worse than guessing, counts as guessing: an accuracy of "
            "1/k, a loss of log k, for k classes. Nothing is left out of a mean.",
            "The ratio is a method's error (1 - accuracy) or loss to that of the best tuned method on the task; "
            f"overall is the geometric mean over the tasks. Errors and losses below {FLOOR:g} count as {FLOOR:g}.",
            f"Usable: with the first seed, at most {100 * MARGIN:g} points or {100 * LOSS_MARGIN:g} % of the loss from "
            "the best run of all methods on the task.",
            f"The seeds are {', '.join(map(str, result.study.seeds))}.",
        ]

    def numbers(self, result: Result, tables: Sequence[Table]) -> dict[str, Any]:
        shown = [{"title": t.title, "head": list(t.head), "rows": [list(row) for row in t.rows]} for t in tables]
        return {"tables": shown}

    def draw(self, result: Result) -> Figure:
        from borat.lab.reproduce.picture import draw_board  # with Matplotlib, which the tables do not need

        return draw_board(make_board(result), self.title)


def _score_text(metric: str, score: Score) -> str:
    """Return a score as an accuracy or a loss."""
    mean = score.mean if lower_is_better(metric) else 1.0 - score.mean
    spread = "" if score.std is None else f" ± {value_text(metric, score.std, spread=True)}"
    lost = f" ({score.lost} of {len(score.costs)} lost)" if score.lost else ""
    return value_text(metric, mean) + spread + lost


def _heads(spec: ScoreboardSpec, columns: Iterable[str]) -> tuple[str, ...]:
    return ("method", *(f"{column}, {metric_text(spec.metric_in(column)).removeprefix('test ')}" for column in columns))


def _scores(spec: ScoreboardSpec, title: str, board: Board, scores: Scores) -> Table:
    limits = {}
    for column in board.columns:
        best = min((scores[method, column] for method in board.methods), key=lambda score: score.mean)
        limits[column] = best.mean + best.standard_error
    rows: list[tuple[str, ...]] = []
    for method in board.methods:
        found = {column: scores[method, column] for column in board.columns}
        texts = {column: _score_text(spec.metric_in(column), score) for column, score in found.items()}
        rows.append((method, *(f"**{t}**" if found[c].mean <= limits[c] else t for c, t in texts.items())))
    return Table(title, _heads(spec, board.columns), rows)


def _overall(board: Board) -> Table:
    rows: list[tuple[str, ...]] = []
    for method in board.ranking(board.defaults):
        at = [board.overall(scores, method) for scores in (board.defaults, board.tuned)]
        rows.append((method, *(text for o in at for text in (f"{o.mean:.3f}", f"{o.worst:.2f}, {o.column}"))))
    head = ("method", "defaults, overall", "defaults, worst ratio", "tuned, overall", "tuned, worst ratio")
    return Table("Error or loss over that of the best tuned method", head, rows)


def _usable(spec: ScoreboardSpec, result: Result) -> Table:
    """Return the number of learning rates at which each method works."""
    rows: list[tuple[str, ...]] = []
    for method in result.methods:
        texts = []
        for column in result.columns:
            cells = [cell for cell in result.cells if cell.cell.column == column]
            settings = next(cell.settings for cell in cells if cell.cell.method == method)
            usable = is_near_best(settings, spec.metric_in(column), cells)
            texts.append(f"{usable.sum()} of {len(settings)}")
        rows.append((method, *texts))
    return Table("Usable learning rates, a factor of ten apart", ("method", *result.columns), rows)


def _objectives(result: Result) -> Table:
    rows: list[tuple[str, ...]] = []
    for method in result.methods:
        cells = [cell for cell in result.cells if cell.cell.method == method]
        rows.append((method, *(f"{_objective(cell.defaults)}, {_objective(cell.chosen)}" for cell in cells)))
    return Table("Training objective reached: at their defaults, tuned", ("method", *result.columns), rows)


def _objective(runs: pd.DataFrame) -> str:
    """Return the mean over the seeds that worked, in the last epoch."""
    found = [curve(history, "train_loss")[-1] for history in runs.history[runs.works]] if len(runs) else []
    return value_text("train_loss", sum(found) / len(found)) if found else DASH


def _goal(spec: ScoreboardSpec, board: Board) -> Table:
    """Return the distance of each method in the goal from the best tuned one."""
    lines = goal_lines(board, spec.goal, {column: spec.metric_in(column) for column in board.columns})
    rows: list[tuple[str, ...]] = []
    for line in lines:
        metric = spec.metric_in(line.column)
        ours = _score_text(metric, board.defaults[line.method, line.column])
        best = f"{_score_text(metric, board.tuned[line.rival, line.column])}, {line.rival}"
        rows.append((f"{line.method}, {line.column}", ours, best, _distance(line, metric), _verdict(line.is_met)))
    ranking = board.ranking(board.defaults)
    for method in (name for name in spec.goal if name in ranking):
        ours, first = (f"{board.overall(board.defaults, name).mean:.3f}" for name in (method, ranking[0]))
        place = f"place {ranking.index(method) + 1} of {len(ranking)}"
        rows.append((f"{method}, overall", ours, f"{first}, {ranking[0]}", place, _verdict(method == ranking[0])))
    title = (
        f"The goal: at its defaults within {100 * POINTS:g} point or {100 * LOSS_SHARE:g} % of the loss of the best "
        "tuned method on every task, and overall first of all methods at their defaults"
    )
    return Table(title, ("method and task", "at its defaults", "best", "behind", "goal"), rows)


def _distance(line: GoalLine, metric: str) -> str:
    return f"{100 * line.excess:.1f} {'points' if unit(metric) == 100.0 else '%'}"


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "missed"


KIND = ScoreboardSpec
