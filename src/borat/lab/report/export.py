"""Tables for other programs: CSV with every key of every run, LaTeX with means over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from borat.lab.files import write_text
from borat.lab.report.rows import Column, make_table
from borat.lab.report.tasks import TaskGroup
from borat.lab.store.records import Experiment

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
"""Characters that start a formula in a spreadsheet."""


def write_csv(runs: pd.DataFrame, path: Path) -> None:
    """Write one line for each run: its configuration and its measurements in full precision."""
    if runs.empty:
        raise ValueError("csv needs runs, and there are none")
    table = runs.drop(columns=["config", "history"]).map(_as_text)
    write_text(path, table.set_axis(table.index.map(_as_text)).to_csv())


def _as_text(value: Any) -> Any:
    """Quote text that a spreadsheet would execute as a formula.

    >>> _as_text("=1+1"), _as_text("SGD"), _as_text(-0.5)
    ("'=1+1", 'SGD', -0.5)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def write_latex(tasks: Sequence[TaskGroup], experiments: Sequence[Experiment], path: Path) -> None:
    """Write tables for the booktabs package: those of each experiment, then the settings of each task."""
    parts = ["% needs \\usepackage{booktabs}"]
    for table in (table for experiment in experiments for table in experiment.tables):
        rows = ([_bold(cell) for cell in row] for row in table.rows)
        parts.append(_tabular(table.title, "l" + "r" * (len(table.head) - 1), table.head, rows))
    parts += [_settings(task) for task in tasks]
    write_text(path, "\n\n".join(parts) + "\n")


def _settings(task: TaskGroup) -> str:
    (columns, _, settings), several = make_table([task]), any(len(setting.runs) > 1 for setting in task.settings)
    left_out = ("run", "task", "epochs") if several else ("run", "task", "epochs", "seed")
    kept = {place: column for place, column in enumerate(columns) if column.key not in left_out}
    heads = [f"{column.title} (%)" if column.kind == "percent" else column.title for column in kept.values()]
    alignment = "".join("l" if column.kind == "text" else "r" for column in kept.values())
    rows = ([_cell(column, row[place]) for place, column in kept.items()] for row in settings)
    return _tabular(task.name, alignment, heads, rows)


def _bold(cell: str) -> str:
    return rf"\textbf{{{escape(cell[2:-2])}}}" if cell.startswith("**") else escape(cell)


def _tabular(title: str, alignment: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"% {' '.join(title.split())}", rf"\begin{{tabular}}{{{alignment}}}", r"\toprule"]
    lines += [" & ".join(map(escape, heads)) + r" \\", r"\midrule"]
    lines += [" & ".join(row) + r" \\" for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _cell(column: Column, value: Any) -> str:
    """Return a value as LaTeX; percentages without the sign, which is in the head."""
    if isinstance(value, list):
        return r" $\pm$ ".join(_cell(column, number) for number in value if number is not None)
    if value is None:
        return "none" if column.key == "radius" else "--"
    if isinstance(value, str):
        return escape(value)
    numbers = {"percent": f"{100 * value:.2f}", "seconds": f"{value:.1f}", "whole": f"{value:.0f}"}
    return numbers.get(column.kind, f"{value:.4g}")


def escape(text: str) -> str:
    r"""Return text that LaTeX prints unchanged.

    >>> escape("SPS_max & 100 %")
    'SPS\\_max \\& 100 \\%'
    """
    return "".join(SPECIAL.get(sign, sign) for sign in text)
