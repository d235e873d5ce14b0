"""The table of runs and settings, for the page and for LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from borat.lab.config import CHOICES
from borat.lab.metrics import Mean
from borat.lab.report.tasks import RESULT_COLUMN, Setting, TaskGroup, short_names
from borat.lab.store.run import LOST


@dataclass(frozen=True)
class Column:
    """A column; its kind is one of text, number, whole, percent and seconds."""

    key: str
    title: str
    kind: str


Cells = list[list[Any]]


def make_table(tasks: Sequence[TaskGroup]) -> tuple[list[Column], Cells, Cells]:
    """Return the columns, and the cells of all runs and of all settings.

    A mean over seeds is a list of two numbers, the mean and the standard deviation.
    """
    if not tasks:
        return [], [], []
    columns = _columns(tasks)
    keys = [column.key for column in columns]
    named = list(zip(short_names(tasks), tasks, strict=True))
    runs = pd.concat([task.runs.assign(task=name) for name, task in named]).reset_index()
    runs = runs.assign(epochs=runs.epochs_done)[keys].astype(object)
    settings = [_setting_row(name, setting, keys) for name, task in named for setting in task.settings]
    return columns, runs.where(runs.notna(), None).to_numpy().tolist(), settings


def _columns(tasks: Sequence[TaskGroup]) -> list[Column]:
    """Return the columns: method and learning rate always, other choices only if they differ between runs."""
    configs = [setting.config for task in tasks for setting in task.settings]
    varied = [key for key in CHOICES if key != "lr" and len({getattr(config, key) for config in configs}) > 1]
    return [
        Column("method", "method", "text"),
        Column("lr", "lr", "number"),
        *(Column(key, key.replace("_", " "), "number") for key in varied),
        *_results(tasks),
        Column("train_loss", "training loss", "number"),
        Column("seed", "seed", "whole"),
        Column("status", "status", "text"),
        Column("epochs", "epochs", "whole"),
        Column("seconds", "training time", "seconds"),
        *([Column("task", "task", "text")] if len(tasks) > 1 else []),
        Column("run", "run", "text"),
    ]


def _results(tasks: Sequence[TaskGroup]) -> list[Column]:
    """Return the columns of the measures that the tasks have: accuracies, or losses and perplexities."""
    columns = []
    for measure, kind in (("accuracy", "percent"), ("loss", "number")):
        titles = {task.metric for task in tasks if task.measure == measure}
        if titles:
            columns.append(Column(RESULT_COLUMN[measure], titles.pop() if len(titles) == 1 else measure, kind))
            columns.append(Column(f"validation_{measure}", f"validation {measure}", kind))
    if any(task.runs.perplexity.notna().any() for task in tasks):
        columns.insert(-1, Column("perplexity", "perplexity", "number"))
    return columns


def _setting_row(task: str, setting: Setting, keys: Sequence[str]) -> list[Any]:
    """Return means over the seeds of a setting; a seed that diverged or failed is counted, not averaged."""
    runs, config = setting.runs, setting.config
    kept = runs[~runs.status.isin(LOST)]
    several = len(runs) > 1
    row = {
        "method": config.method,
        "task": task,
        **{key: getattr(config, key) for key in CHOICES},
        "seed": f"{len(runs)} seeds" if several else int(runs.seed.iloc[0]),
        "status": setting.statuses,
        "run": f"{len(runs)} runs" if several else runs.index[0],
    }
    for key in (key for key in keys if key not in row):
        mean = Mean.of(kept["epochs_done" if key == "epochs" else key])
        row[key] = mean and [mean.mean, mean.std]
    return [row[key] for key in keys]
