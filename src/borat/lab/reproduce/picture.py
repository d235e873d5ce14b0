"""A scoreboard as one picture: how far each method is from the best on each task, at its defaults and tuned."""

from __future__ import annotations

import math
from typing import Any

import matplotlib as mpl
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure

from borat.lab.figures import SCALE
from borat.lab.reproduce.board import Board, Scores

COLOURS = LinearSegmentedColormap.from_list("ratios", SCALE["light"][::-1])
WORST = 4.0
"""Ratios from here on have the same colour."""
LOOK: dict[Any, Any] = {"font.size": 8, "axes.spines.left": False, "axes.spines.bottom": False}


def draw_board(board: Board, title: str) -> Figure:
    """Rows in the order of the overall score at the defaults; dark is near the best tuned method."""
    methods = board.ranking(board.defaults)
    with mpl.rc_context(LOOK | {"axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(12.0, 2.2 + 0.27 * len(methods)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        _draw(left, board, board.defaults, methods, "at their defaults")
        _draw(right, board, board.tuned, methods, "tuned")
        figure.suptitle(f"{title}: error or loss over that of the best tuned method", size=10)
    return figure


def _draw(axes: Any, board: Board, scores: Scores, methods: list[str], title: str) -> None:
    names = ["all tasks", *board.columns]
    table = [
        [board.overall(scores, method).mean, *(board.ratio(scores, method, column) for column in board.columns)]
        for method in methods
    ]
    norm = LogNorm(1.0, WORST, clip=True)
    axes.imshow(table, cmap=COLOURS, norm=norm, aspect="auto")
    for row, ratios in enumerate(table):
        for column, ratio in enumerate(ratios):
            colour = "white" if norm(ratio) < 0.4 else "black"
            weight = "bold" if column == 0 else "normal"
            axes.text(column, row, _digits(ratio), ha="center", va="center", color=colour, weight=weight, size=7)
    axes.axvline(0.5, color="white", linewidth=3)
    axes.set_xticks(range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(methods)), methods)
    axes.tick_params(length=0)
    axes.set_title(title, size=9, weight="bold")


def _digits(ratio: float) -> str:
    """Three of them.

    >>> _digits(1.0345), _digits(23.45)
    ('1.03', '23.4')
    """
    return f"{ratio:.{max(0, 2 - int(math.log10(max(ratio, 1.0))))}f}"
