"""The tables of a scoreboard, and what has to be said of them."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from borat.lab.metrics import lower_is_better, metric_text, unit, value_text
from borat.lab.reproduce.claims import is_near_best
from borat.lab.reproduce.run import Result
from borat.lab.reproduce.scoreboard import FLOOR, LOSS_SHARE, POINTS, Board, GoalLine, Score, Scores, goal_lines
from borat.lab.reproduce.spec import Spec
from borat.lab.reproduce.tables import DASH
from borat.lab.robustness import LOSS_MARGIN, MARGIN
from borat.lab.store.records import curve
from borat.lab.tables import Table


def board_tables(result: Result, board: Board) -> list[Table]:
    """What there is to show, the most important first."""
    name = result.study.heading
    shown = [
        _scores(result.spec, f"{name}: at their defaults", board, board.defaults),
        _scores(result.spec, f"{name}: tuned", board, board.tuned),
        _overall(board),
        _usable(result),
        _objectives(result),
    ]
    return [*shown, _goal(result.spec, board)] if result.spec.goal else shown


def board_remarks(spec: Spec) -> list[str]:
    """How to read them."""
    return [
        "At its defaults, a method has the learning rate that its authors or its library advise. Tuned, it has the "
        "one of its grid with the best validation result after the last epoch, with the first seed. What is shown is "
        "the test result of the last epoch.",
        "Bold: within one standard error of the best, its own. ± is the standard deviation over the seeds.",
        "A run that diverged or failed, and one that is worse than guessing, counts as guessing: an accuracy of 1/k, a "
        "loss of log k, for k classes. Nothing is left out of a mean.",
        "The ratio is a method's error (1 - accuracy) or loss to that of the best tuned method on the task; overall "
        f"is the geometric mean over the tasks. Errors and losses below {FLOOR:g} count as {FLOOR:g}.",
        f"Usable: with the first seed, at most {100 * MARGIN:g} points or {100 * LOSS_MARGIN:g} % of the loss from the "
        "best run of all methods on the task.",
    ]


def score_text(metric: str, score: Score) -> str:
    """As an accuracy or a loss."""
    mean = score.mean if lower_is_better(metric) else 1.0 - score.mean
    spread = "" if score.std is None else f" ± {value_text(metric, score.std, spread=True)}"
    lost = f" ({score.lost} of {len(score.costs)} lost)" if score.lost else ""
    return value_text(metric, mean) + spread + lost


def _heads(spec: Spec, columns: Iterable[str]) -> tuple[str, ...]:
    return ("method", *(f"{column}, {metric_text(spec.metric_in(column)).removeprefix('test ')}" for column in columns))


def _scores(spec: Spec, title: str, board: Board, scores: Scores) -> Table:
    limits = {}
    for column in board.columns:
        best = min((scores[method, column] for method in board.methods), key=lambda score: score.mean)
        limits[column] = best.mean + best.standard_error
    rows: list[tuple[str, ...]] = []
    for method in board.methods:
        found = {column: scores[method, column] for column in board.columns}
        texts = {column: score_text(spec.metric_in(column), score) for column, score in found.items()}
        rows.append((method, *(f"**{t}**" if found[c].mean <= limits[c] else t for c, t in texts.items())))
    return Table(title, _heads(spec, board.columns), rows)


def _overall(board: Board) -> Table:
    rows: list[tuple[str, ...]] = []
    for method in board.ranking(board.defaults):
        at = [board.overall(scores, method) for scores in (board.defaults, board.tuned)]
        rows.append((method, *(text for o in at for text in (f"{o.mean:.3f}", f"{o.worst:.2f}, {o.column}"))))
    head = ("method", "defaults, overall", "defaults, worst ratio", "tuned, overall", "tuned, worst ratio")
    return Table("Error or loss over that of the best tuned method", head, rows)


def _usable(result: Result) -> Table:
    """At how many of its learning rates a method works."""
    rows: list[tuple[str, ...]] = []
    for method in result.methods:
        texts = []
        for column in result.columns:
            cells = [cell for cell in result.cells if cell.cell.column == column]
            settings = next(cell.settings for cell in cells if cell.cell.method == method)
            usable = is_near_best(settings, result.spec.metric_in(column), cells)
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
    """The mean over the seeds that worked, in the last epoch."""
    found = [curve(history, "train_loss")[-1] for history in runs.history[runs.works]] if len(runs) else []
    return value_text("train_loss", sum(found) / len(found)) if found else DASH


def _goal(spec: Spec, board: Board) -> Table:
    """Computed from the numbers above."""
    lines = goal_lines(board, spec.goal, {column: spec.metric_in(column) for column in board.columns})
    rows: list[tuple[str, ...]] = []
    for line in lines:
        metric = spec.metric_in(line.column)
        ours = score_text(metric, board.defaults[line.method, line.column])
        best = f"{score_text(metric, board.tuned[line.rival, line.column])}, {line.rival}"
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
