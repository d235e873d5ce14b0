"""The table of runs: the same columns for the page, for CSV and for LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from borat.lab.config import RunConfig
from borat.lab.report.tasks import METHOD_KEYS, Mean, Setting, Task, short_names
from borat.lab.store.records import Record


@dataclass(frozen=True)
class Column:
    """One column; its kind says how it is written: text, number, whole, percent or seconds."""

    key: str
    title: str
    kind: str


def make_columns(tasks: Sequence[Task]) -> list[Column]:
    """Method and learning rate always; of the other choices those that differ between runs."""
    configs = [setting.config for task in tasks for setting in task.settings]
    varied = [key for key in METHOD_KEYS if len({getattr(config, key) for config in configs}) > 1]
    choices = [k for k in varied if k not in ("optimizer", "bundle_size", "schedule", "lr")]
    return [
        Column("method", "method", "text"),
        Column("lr", "lr", "number"),
        *(Column(key, key.replace("_", " "), "number") for key in choices),
        Column("accuracy", tasks[0].metric if len({t.metric for t in tasks}) == 1 else "accuracy", "percent"),
        Column("validation_accuracy", "validation accuracy", "percent"),
        Column("train_loss", "training loss", "number"),
        Column("seed", "seed", "whole"),
        Column("status", "status", "text"),
        Column("epochs", "epochs", "whole"),
        Column("seconds", "training time", "seconds"),
        *([Column("task", "task", "text")] if len(tasks) > 1 else []),
        Column("run", "run", "text"),
    ]


def run_row(task: str, record: Record) -> dict[str, Any]:
    """The values of one run."""
    return {
        **_choices(task, record.config),
        "seed": record.config.seed,
        "status": record.status,
        "epochs": len(record.metrics.epochs),
        "train_loss": record.last("train_loss"),
        "validation_accuracy": record.last("validation_accuracy"),
        "accuracy": record.accuracy,
        "seconds": record.seconds,
        "run": record.name,
    }


def setting_row(task: str, setting: Setting) -> dict[str, Any]:
    """The means over the seeds of one setting; a diverged seed is counted, not averaged."""
    kept = [record for record in setting.records if record.status != "diverged"]
    rows = [run_row(task, record) for record in kept]
    means = {
        key: Mean.of(row[key] for row in rows)
        for key in ("epochs", "train_loss", "validation_accuracy", "accuracy", "seconds")
    }
    several = len(setting.records) > 1
    return {
        **_choices(task, setting.config),
        "seed": f"{len(setting.records)} seeds" if several else setting.records[0].config.seed,
        "status": _status(setting),
        **means,
        "run": f"{len(setting.records)} runs" if several else setting.records[0].name,
    }


def _status(setting: Setting) -> str:
    counts = {
        status: sum(r.status == status for r in setting.records) for status in ("finished", "diverged", "running")
    }
    present = {status: count for status, count in counts.items() if count}
    if len(present) == 1:
        return next(iter(present))
    return ", ".join(f"{count} {status}" for status, count in present.items())


def _choices(task: str, config: RunConfig) -> dict[str, Any]:
    choices = {key: getattr(config, key) for key in METHOD_KEYS if key not in ("optimizer", "bundle_size", "schedule")}
    return {"method": config.method, "task": task, **choices}


def make_table(tasks: Sequence[Task]) -> dict[str, Any]:
    """Columns, rows of runs, and rows of settings (means over seeds), as the page wants them."""
    columns = make_columns(tasks) if tasks else []
    named = [(name, setting) for name, task in zip(short_names(tasks), tasks, strict=True) for setting in task.settings]
    return {
        "columns": [vars(column) for column in columns],
        "runs": [_cells(columns, run_row(name, record)) for name, setting in named for record in setting.records],
        "settings": [_cells(columns, setting_row(name, setting)) for name, setting in named],
    }


def _cells(columns: Sequence[Column], row: dict[str, Any]) -> list[Any]:
    return [[v.mean, v.std] if isinstance(v := row[column.key], Mean) else v for column in columns]
