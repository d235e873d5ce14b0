"""The page: one self-contained HTML file with its style, its scripts, Plotly and the data."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from string import Template
from typing import Any

from pydantic_core import to_json

from borat.lab.figures import DASHES, PALETTE, SCALE, kind_styles, method_styles
from borat.lab.methods import sort_labels
from borat.lab.metrics import Mean
from borat.lab.report.rows import make_table
from borat.lab.report.tasks import Setting, TaskGroup
from borat.lab.robustness import LOSS_MARGIN, MARGIN, describe_ranges
from borat.lab.store.records import Collection

SCRIPTS = ("base.js", "verdict.js", "heatmaps.js", "curves.js", "kinds.js", "table.js", "main.js")


def render(title: str, summary: str, found: Collection, tasks: Sequence[TaskGroup]) -> str:
    """Return the HTML of a report."""
    from plotly.offline import get_plotlyjs

    return Template(_asset("page.html")).substitute(
        title=html.escape(title),
        style=_asset("style.css"),
        plotly=get_plotlyjs(),
        data=embed(make_data(title, summary, found, tasks)),
        script="\n".join(_asset(name) for name in SCRIPTS),
    )


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def embed(data: Any) -> str:
    """Return JSON for a script element: no text in it can end the element or start a comment.

    Numbers that are not finite become null.
    """
    text = to_json(data, inf_nan_mode="null").decode()
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def make_data(title: str, summary: str, found: Collection, tasks: Sequence[TaskGroup]) -> dict[str, Any]:
    """Return everything that the scripts draw."""
    kinds = {kind for task in tasks for setting in task.settings for counts in setting.kinds for kind in counts}
    methods = sort_labels(method for task in tasks for method in task.methods)
    styles, (columns, runs, settings) = method_styles(methods), make_table(tasks)
    return {
        "title": title,
        "summary": summary,
        "notes": found.notes,
        "margins": {"accuracy": MARGIN, "loss": LOSS_MARGIN},
        "methods": {method: asdict(styles[method]) for method in methods},
        "palette": [asdict(style) for style in PALETTE],
        "dashes": DASHES,
        "scale": SCALE,
        "kinds": {kind: asdict(style) for kind, style in kind_styles(kinds).items()},
        "experiments": [experiment.model_dump() for experiment in found.experiments],
        "tasks": [_task(task) for task in tasks],
        "table": {"columns": [asdict(column) for column in columns], "runs": runs, "settings": settings},
    }


def _task(task: TaskGroup) -> dict[str, Any]:
    grid = task.grid
    return {
        "name": task.name,
        "metric": task.metric,
        "measure": task.measure,
        "best": task.top,
        "perplexity": math.exp(task.top) if task.top and task.runs.perplexity.notna().any() else None,
        "sentence": describe_ranges(task.usable),
        "usable": [asdict(result) for result in task.usable],
        "grid": {
            "form": grid.form,
            "second": grid.second and grid.second.replace("_", " "),
            "lrs": grid.lrs,
            "secondValues": grid.second_values,
            "panels": {m: [_cell(task, s, *place) for place, s in cells.items()] for m, cells in grid.cells.items()},
        },
        "settings": [_setting(task, setting) for setting in task.settings],
    }


def _about(task: TaskGroup, setting: Setting) -> dict[str, Any]:
    is_best = setting is task.best[setting.method]
    return {"label": setting.label, "lost": setting.lost, "status": setting.status, "best": is_best}


def _cell(task: TaskGroup, setting: Setting, lr: float, second: float | None) -> dict[str, Any]:
    result = asdict(setting.result) if setting.result else {"mean": None, "std": None, "runs": 0}
    return {"lr": lr, "second": second, **result, **_about(task, setting)}


def _setting(task: TaskGroup, setting: Setting) -> dict[str, Any]:
    counts = setting.kinds
    curves = {"train_loss": "train_loss", "validation": f"validation_{task.measure}", "step_size": "step_size"}
    return {
        "method": setting.method,
        "lr": setting.config.lr,
        "radius": setting.config.radius,
        "seeds": len(setting.runs),
        **_about(task, setting),
        "curves": {name: _curve(setting.curve(key)) for name, key in curves.items()},
        "kinds": {
            kind: [count[kind] / max(count.total(), 1) for count in counts]
            for kind in sorted({kind for count in counts for kind in count})
        },
    }


def _curve(values: Sequence[Mean | None]) -> dict[str, Any]:
    several = any(value is not None and value.std is not None for value in values)
    curve: dict[str, Any] = {"mean": [value and value.mean for value in values]}
    return curve | ({"std": [value and value.std for value in values]} if several else {})
