"""Ratios as one picture: how far each method is from the best on each task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure

from borat.lab.figures import SCALE

COLOURS = LinearSegmentedColormap.from_list("ratios", SCALE["light"][::-1])
WORST = 4.0
"""Larger ratios have the same colour as this one."""
LOOK: dict[Any, Any] = {"font.size": 8, **{f"axes.spines.{side}": False for side in ("left", "bottom", "top", "right")}}


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
            _draw(axes, ratios.loc[methods])
            axes.set_title(name, size=9, weight="bold")
        figure.suptitle(title, size=10)
    return figure


def _draw(axes: Any, ratios: pd.DataFrame) -> None:
    norm = LogNorm(1.0, WORST, clip=True)
    axes.imshow(ratios, cmap=COLOURS, norm=norm, aspect="auto")
    for row, line in enumerate(ratios.to_numpy()):
        for column, ratio in enumerate(line):
            text, colour = f"{ratio:.2f}" if ratio < 10.0 else f"{ratio:.3g}", "white" if norm(ratio) < 0.4 else "black"
            weight = "bold" if column == 0 else "normal"
            axes.text(column, row, text, ha="center", va="center", color=colour, weight=weight, size=7)
    axes.axvline(0.5, color="white", linewidth=3)
    axes.set_xticks(range(len(ratios.columns)), ratios.columns, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(ratios)), ratios.index)
    axes.tick_params(length=0)
