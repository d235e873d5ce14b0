"""Pictures of results: curves over the epochs and over time, and ratios as coloured cells."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from borat.lab.figures import Style, method_styles
from borat.lab.metrics import lower_is_better, metric_text, unit
from borat.lab.report.static import BLUES, line_style, make_logarithmic
from borat.lab.reproduce.run import CellResult, Result
from borat.lab.store.records import curve

WORST = 4.0
"""Larger ratios have the same colour as this one."""
LOOK: dict[Any, Any] = {"font.size": 8, **{f"axes.spines.{side}": False for side in ("left", "bottom", "top", "right")}}


def draw_curves(result: Result, metric: str) -> Figure:
    """Draw a metric over the epochs, or the characters of a text, and over time; each column has a row of panels."""
    styles = method_styles(cell.cell.configs[0].method for cell in result.cells)
    figure = Figure(figsize=(9.0, 0.6 + 3.0 * len(result.columns)), layout="constrained")
    rows = figure.subplots(len(result.columns), 2, sharey="row", squeeze=False)
    for column, panels in zip(result.columns, rows, strict=True):
        cells = result.in_column(column)
        window = cells[0].cell.configs[0].window
        step = result.data[column].sizes["train"] * window / 1e6 if window else 1.0
        for cell in cells:
            _plot_runs(panels, cell, metric, step, styles)
        panels[0].set_title(column, size=9)
        panels[0].set_xlabel("million characters" if window else "epoch")
        panels[0].set_ylabel(metric_text(metric) + (", nats per character" if window else ""))
        panels[1].set_xlabel("minutes of training")
        panels[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        if lower_is_better(metric):
            make_logarithmic(panels[0])
    figure.suptitle(result.spec.title, size=10)
    return figure


def _plot_runs(panels: Any, cell: CellResult, metric: str, step: float, styles: Mapping[str, Style]) -> None:
    """Plot the runs that finished, over epochs times ``step`` and over time; those that were not chosen are thin."""
    for digest, run in cell.runs[cell.runs.value.notna()].iterrows():
        values = [unit(metric) * value for value in curve(run.history, metric)]
        look = {**line_style(styles[run.method]), "ms": 4, "markevery": max(1, len(values) // 10)}
        if digest in cell.chosen.index:
            look["label"] = f"{cell.cell.method}, lr {run.lr:g}"
        else:
            look |= {"lw": 0.6, "marker": ""}
        minutes = [seconds / 60.0 for seconds in accumulate(epoch["seconds"] for epoch in run.history)]
        for axes, x in zip(panels, ([step * (i + 1) for i in range(len(values))], minutes), strict=True):
            axes.plot(x, values, **look)
            axes.grid(alpha=0.3)


def draw_ratios(title: str, panels: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw a panel for each table of ratios; dark is near 1.

    The first column is the mean over all tasks. Methods are in the order of that of the first table.
    """
    first = next(iter(panels.values()))
    methods = first.iloc[:, 0].sort_values(kind="stable").index
    width = max(6.0, 0.5 * len(first.columns))
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(width * len(panels), 2.2 + 0.27 * len(methods)), layout="constrained")
        every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (name, ratios) in zip(every, panels.items(), strict=True):
            _draw_ratios(axes, ratios.loc[methods])
            axes.set_title(name, size=9, weight="bold")
        figure.suptitle(title, size=10)
    return figure


def _draw_ratios(axes: Any, ratios: pd.DataFrame) -> None:
    norm = LogNorm(1.0, WORST, clip=True)
    axes.imshow(ratios, cmap=BLUES.reversed(), norm=norm, aspect="auto")
    for row, line in enumerate(ratios.to_numpy()):
        for column, ratio in enumerate(line):
            text, colour = f"{ratio:.2f}" if ratio < 10.0 else f"{ratio:.3g}", "white" if norm(ratio) < 0.4 else "black"
            weight = "bold" if column == 0 else "normal"
            axes.text(column, row, text, ha="center", va="center", color=colour, weight=weight, size=7)
    axes.axvline(0.5, color="white", linewidth=3)
    axes.set_xticks(range(len(ratios.columns)), ratios.columns, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(ratios)), ratios.index)
    axes.tick_params(length=0)
