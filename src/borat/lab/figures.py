"""Colours, markers and dashes: the same for a method in every figure, and distinct without colour.

The colours are Okabe and Ito's, which colour-blind readers can distinguish; those for dark pages are brighter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from borat.lab.files import write_atomically
from borat.lab.methods import FIRST_LABELS, sort_labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {
    "grey": ("#666666", "#b3b3b3"),
    "vermilion": ("#d55e00", "#f0813a"),
    "blue": ("#0072b2", "#4aa3df"),
    "green": ("#009e73", "#1fbf93"),
    "purple": ("#cc79a7", "#dd93bb"),
    "orange": ("#b87d00", "#e69f00"),
    "sky": ("#2b8cbe", "#7cc8f2"),
}
"""Colours on a light page and on a dark one."""
SCALE = {
    "light": ("#f0f5fb", "#c2d8ee", "#6aa8d8", "#2069ad", "#082c5e"),
    "dark": ("#e2ebf5", "#b3cce6", "#5f9dd3", "#1f66ae", "#0d3a78"),
}
"""Colours of heatmaps from worst to best: blues of decreasing brightness, legible without colour vision."""
MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "pentagon", "star", "hexagon")
DASHES = ("solid", "dash", "dot", "dashdot")
HATCHES = ("", "/", "\\", "x", "-", "|", "+", ".")

STEP_KINDS = ("SGD", "ALIG", "ESGD", "EALIG", "MAX2", "MAX3", "ZERO")
"""The paper's kinds of step, in the order of stacking."""


@dataclass(frozen=True)
class Style:
    """Style of one method, in Plotly's terms, or of one kind of step, which has a hatch."""

    light: str
    dark: str
    marker: str = ""
    dash: str = ""
    hatch: str = ""


PALETTE = tuple(Style(*colours, marker, DASHES[0]) for colours, marker in zip(COLOURS.values(), MARKERS, strict=False))


def method_styles(labels: Iterable[str]) -> dict[str, Style]:
    """Return a style for each label. Labels with a fixed colour always look the same; others take the next styles."""
    names = list(COLOURS)
    others = [label for label in sort_labels(labels) if label not in FIRST_LABELS]
    styles = {}
    for i, label in enumerate((*FIRST_LABELS, *others)):
        colour = FIRST_LABELS.get(label, names[i % len(names)])
        dash = DASHES[i // len(names) % len(DASHES)]
        styles[label] = Style(*COLOURS[colour], MARKERS[i % len(MARKERS)], dash)
    return styles


def kind_styles(kinds: Iterable[str]) -> dict[str, Style]:
    """Return a style for each kind of step, the same in every figure, in the order of stacking."""
    others = sorted(set(kinds) - set(STEP_KINDS))
    styles, colours = {}, list(COLOURS.values())
    for kind in (*STEP_KINDS, *others):
        i = STEP_KINDS.index(kind) if kind in STEP_KINDS else len(STEP_KINDS) + _support_rank(kind)
        styles[kind] = Style(*colours[(i + 1) % len(colours)], hatch=HATCHES[i % len(HATCHES)])
    return styles


def _support_rank(kind: str) -> int:
    """Return the rank of a support: by its number of pieces, without the bound first."""
    pieces = re.match(r"(\d+) piece", kind)
    return 2 * int(pieces[1]) + kind.endswith("bound") if pieces else 0


def save(figure: Figure, path: Path, dpi: int = 150) -> Path:
    """Write a figure as PNG or PDF, by the suffix of the path, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"CreationDate": None} if path.suffix == ".pdf" else {"Software": None}  # same picture, same file
    write_atomically(path, partial(figure.savefig, dpi=dpi, format=path.suffix[1:], metadata=metadata))
    return path
