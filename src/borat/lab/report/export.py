"""The table for other programs: CSV with every key of every run, LaTeX with means over seeds."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from borat.lab.files import write_atomically
from borat.lab.report.rows import Column, make_columns, run_row, setting_row
from borat.lab.report.tasks import Mean, Task
from borat.lab.store.records import Experiment, number

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
"""How a formula begins."""


def write_csv(tasks: Sequence[Task], path: Path) -> None:
    """One line for each run: its configuration, then what was measured; numbers in full."""
    rows = [
        {
            "run": record.name,
            "method": record.config.method,
            **record.config.as_dict(),
            **_measured(run_row("", record)),
        }
        for task in tasks
        for setting in task.settings
        for record in setting.records
    ]
    if not rows:
        raise ValueError("csv needs runs, and there are none")

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows({key: _as_text(value) for key, value in row.items()} for row in rows)

    write_atomically(path, write)


def _as_text(value: Any) -> Any:
    """Text that spreadsheets do not take for a formula, which they would execute.

    >>> _as_text("=1+1"), _as_text("SGD"), _as_text(-0.5)
    ("'=1+1", 'SGD', -0.5)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _measured(row: dict[str, Any]) -> dict[str, Any]:
    names = {"epochs": "epochs_done"}
    keys = ("status", "epochs", "train_loss", "validation_accuracy", "accuracy", "seconds")
    return {names.get(key, key): row[key] for key in keys}


def write_latex(tasks: Sequence[Task], experiments: Sequence[Experiment], path: Path) -> None:
    """Tables for the booktabs package: ours beside the paper's for each experiment, then the settings of each task."""
    parts = ["% needs \\usepackage{booktabs}"]
    parts += [_experiment(experiment) for experiment in experiments]
    parts += [_settings(task) for task in tasks]
    write_atomically(path, lambda temporary: temporary.write_text("\n\n".join(parts) + "\n", encoding="utf-8"))


def _settings(task: Task) -> str:
    several = any(len(setting.records) > 1 for setting in task.settings)
    left_out = ("run", "task", "epochs") if several else ("run", "task", "epochs", "seed")
    columns = [column for column in make_columns([task]) if column.key not in left_out]
    rows = [setting_row(task.name, setting) for setting in task.settings]
    heads = [f"{column.title} (%)" if column.kind == "percent" else column.title for column in columns]
    cells = [[latex_cell(column, row[column.key]) for column in columns] for row in rows]
    alignment = "".join("l" if column.kind == "text" else "r" for column in columns)
    return _tabular(task.name, alignment, heads, cells)


def _experiment(experiment: Experiment) -> str:
    heads = ["method"]
    for column in experiment.columns:
        heads += [f"{column}, ours", "paper"]
    factor = 100.0 if "accuracy" in experiment.metric else 1.0
    cells = []
    for method in dict.fromkeys((*experiment.ours, *experiment.paper)):
        row = [escape(method)]
        for column in experiment.columns:
            ours = experiment.ours.get(method, {}).get(column) or {}
            paper = experiment.paper.get(method, {}).get(column)
            row += [_ours(ours, factor), "--" if paper is None else escape(str(paper))]
        cells.append(row)
    title = f"{experiment.title} ({experiment.source}), {experiment.scale} scale, {experiment.metric}"
    return _tabular(title, "l" + "rr" * len(experiment.columns), heads, cells)


def _ours(value: dict[str, Any], factor: float) -> str:
    mean, std = number(value.get("mean")), number(value.get("std"))
    if mean is None:
        return "--"
    return f"{factor * mean:.4g}" + (rf" $\pm$ {factor * std:.2g}" if std is not None else "")


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
