"""The table for other programs: CSV with every key of every run, LaTeX with means over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from borat.lab.files import write_text
from borat.lab.metrics import unit
from borat.lab.report.rows import Column, make_columns, setting_row
from borat.lab.report.tasks import Mean, TaskReport
from borat.lab.store.experiment import Experiment, Ours

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of a formula."""


def write_csv(runs: pd.DataFrame, path: Path) -> None:
    """One line for each run: its configuration, then what was measured; numbers in full."""
    if runs.empty:
        raise ValueError("csv needs runs, and there are none")
    table = runs.drop(columns="history").map(_as_text)
    write_text(path, table.set_axis(table.index.map(_as_text)).to_csv())


def _as_text(value: Any) -> Any:
    """Text that spreadsheets do not take for a formula, which they would execute.

    >>> _as_text("=1+1"), _as_text("SGD"), _as_text(-0.5)
    ("'=1+1", 'SGD', -0.5)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def write_latex(tasks: Sequence[TaskReport], experiments: Sequence[Experiment], path: Path) -> None:
    """Tables for the booktabs package: ours beside the paper's for each experiment, then the settings of each task."""
    parts = ["% needs \\usepackage{booktabs}"]
    parts += [part for experiment in experiments for part in _experiment(experiment)]
    parts += [_settings(task) for task in tasks]
    write_text(path, "\n\n".join(parts) + "\n")


def _settings(task: TaskReport) -> str:
    several = any(len(setting.runs) > 1 for setting in task.settings)
    left_out = ("run", "task", "epochs") if several else ("run", "task", "epochs", "seed")
    columns = [column for column in make_columns([task]) if column.key not in left_out]
    rows = [setting_row(task.name, setting) for setting in task.settings]
    heads = [f"{column.title} (%)" if column.kind == "percent" else column.title for column in columns]
    cells = [[latex_cell(column, row[column.key]) for column in columns] for row in rows]
    alignment = "".join("l" if column.kind == "text" else "r" for column in columns)
    return _tabular(task.name, alignment, heads, cells)


def _experiment(experiment: Experiment) -> list[str]:
    """A scoreboard's own tables, or ours beside the paper's."""
    if not experiment.tables:
        return [_comparison(experiment)]
    return [
        _tabular(t.title, "l" + "r" * (len(t.head) - 1), t.head, [[_text(cell) for cell in row] for row in t.rows])
        for t in experiment.tables
    ]


def _text(cell: str) -> str:
    return rf"\textbf{{{escape(cell[2:-2])}}}" if cell.startswith("**") else escape(cell)


def _comparison(experiment: Experiment) -> str:
    heads = ["method"]
    for column in experiment.columns:
        heads += [f"{column}, ours", "paper"]
    factor = unit(experiment.metric)
    cells = []
    for method in dict.fromkeys((*experiment.ours, *experiment.paper)):
        row = [escape(method)]
        for column in experiment.columns:
            paper = experiment.paper.get(method, {}).get(column)
            ours = experiment.ours.get(method, {}).get(column)
            row += [_ours(ours, factor), "--" if paper is None else f"{factor * paper:.4g}"]
        cells.append(row)
    title = f"{experiment.title} ({experiment.source}), {experiment.scale} scale, {experiment.metric}"
    return _tabular(title, "l" + "rr" * len(experiment.columns), heads, cells)


def _ours(value: Ours | None, factor: float) -> str:
    if value is None or value.mean is None:
        return "--"
    return f"{factor * value.mean:.4g}" + (rf" $\pm$ {factor * value.std:.2g}" if value.std is not None else "")


def _tabular(title: str, alignment: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"% {' '.join(title.split())}", rf"\begin{{tabular}}{{{alignment}}}", r"\toprule"]
    lines += [" & ".join(map(escape, heads)) + r" \\", r"\midrule"]
    lines += [" & ".join(row) + r" \\" for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def latex_cell(column: Column, value: Any) -> str:
    """A value as LaTeX; percentages without the sign, which is in the head."""
    if isinstance(value, Mean):
        spread = f" $\\pm$ {_number(column, value.std)}" if value.std is not None else ""
        return _number(column, value.mean) + spread
    if value is None:
        return "none" if column.key == "radius" else "--"
    return escape(value) if isinstance(value, str) else _number(column, value)


def _number(column: Column, value: float) -> str:
    return {"percent": f"{100 * value:.2f}", "seconds": f"{value:.1f}", "whole": f"{value:.0f}"}.get(
        column.kind, f"{value:.4g}"
    )


def escape(text: str) -> str:
    r"""Text that LaTeX prints as it is.

    >>> escape("SPS_max & 100 %")
    'SPS\\_max \\& 100 \\%'
    """
    return "".join(SPECIAL.get(sign, sign) for sign in text)
