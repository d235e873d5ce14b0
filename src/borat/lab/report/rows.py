"""The table of runs: the same columns for the page, for CSV and for LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from borat.lab.config import RunConfig
from borat.lab.report.tasks import METHOD_KEYS, RESULT_COLUMN, Mean, Setting, TaskReport, short_names
from borat.lab.store.records import RESULTS
from borat.lab.store.run import LOST, STATUSES


@dataclass(frozen=True)
class Column:
    """One column; its kind says how it is written: text, number, whole, percent or seconds."""

    key: str
    title: str
    kind: str


def make_columns(tasks: Sequence[TaskReport]) -> list[Column]:
    """Method and learning rate always; of the other choices those that differ between runs."""
    configs = [setting.config for task in tasks for setting in task.settings]
    varied = [key for key in METHOD_KEYS if len({getattr(config, key) for config in configs}) > 1]
    choices = [k for k in varied if k not in ("optimizer", "bundle_size", "schedule", "lr")]
    return [
        Column("method", "method", "text"),
        Column("lr", "lr", "number"),
        *(Column(key, key.replace("_", " "), "number") for key in choices),
        *_results(tasks),
        Column("train_loss", "training loss", "number"),
        Column("seed", "seed", "whole"),
        Column("status", "status", "text"),
        Column("epochs", "epochs", "whole"),
        Column("seconds", "training time", "seconds"),
        *([Column("task", "task", "text")] if len(tasks) > 1 else []),
        Column("run", "run", "text"),
    ]


def _results(tasks: Sequence[TaskReport]) -> list[Column]:
    """Accuracies where tasks are judged by them, losses and perplexities where they are judged by those."""
    columns = []
    for measure, kind in (("accuracy", "percent"), ("loss", "number")):
        titles = {task.metric for task in tasks if task.measure == measure}
        if titles:
            columns.append(Column(RESULT_COLUMN[measure], titles.pop() if len(titles) == 1 else measure, kind))
            columns.append(Column(f"validation_{measure}", f"validation {measure}", kind))
    if any(task.runs.perplexity.notna().any() for task in tasks):
        columns.insert(-1, Column("perplexity", "perplexity", "number"))
    return columns


def setting_row(task: str, setting: Setting) -> dict[str, Any]:
    """The means over the seeds of one setting; a seed that diverged or failed is counted, not averaged."""
    runs = setting.runs
    kept = runs[~runs.status.isin(LOST)]
    measured = ("train_loss", "validation_accuracy", "validation_loss", *RESULTS, "seconds")
    several = len(runs) > 1
    return {
        **_choices(task, setting.config),
        "seed": f"{len(runs)} seeds" if several else int(runs.seed.iloc[0]),
        "status": _status(runs),
        "epochs": Mean.of(kept.epochs_done),
        **{key: Mean.of(kept[key]) for key in measured},
        "run": f"{len(runs)} runs" if several else runs.index[0],
    }


def _status(runs: pd.DataFrame) -> str:
    counts = {status: count for status in STATUSES if (count := (runs.status == status).sum())}
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _choices(task: str, config: RunConfig) -> dict[str, Any]:
    choices = {key: getattr(config, key) for key in METHOD_KEYS if key not in ("optimizer", "bundle_size", "schedule")}
    return {"method": config.method, "task": task, **choices}


def make_table(tasks: Sequence[TaskReport]) -> dict[str, Any]:
    """Columns, rows of runs, and rows of settings (means over seeds), as the page wants them."""
    if not tasks:
        return {"columns": [], "runs": [], "settings": []}
    columns = make_columns(tasks)
    named = list(zip(short_names(tasks), tasks, strict=True))
    runs = pd.concat([task.runs.assign(task=name) for name, task in named]).reset_index()
    runs = runs.assign(epochs=runs.epochs_done)[[column.key for column in columns]].astype(object)
    settings = [setting_row(name, setting) for name, task in named for setting in task.settings]
    return {
        "columns": [vars(column) for column in columns],
        "runs": runs.where(runs.notna(), None).to_numpy().tolist(),
        "settings": [_cells(columns, row) for row in settings],
    }


def _cells(columns: Sequence[Column], row: dict[str, Any]) -> list[Any]:
    return [[v.mean, v.std] if isinstance(v := row[column.key], Mean) else v for column in columns]
