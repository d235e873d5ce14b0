"""Colours that colour-blind readers can tell apart (Okabe and Ito), dashes, and how figures are written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from matplotlib.figure import Figure

from borat.lab.store import write_atomically

ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = "#e69f00", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7"
GREY = "#777777"

METHODS = {2: ("ALI-G", VERMILION, (0, (5, 2))), 3: ("BORAT3", BLUE, "solid"), 5: ("BORAT5", GREEN, (0, (1, 1)))}
"""Name, colour and dashes for each bundle size."""


def save(figure: Figure, folder: Path, name: str, formats: Iterable[str]) -> list[Path]:
    """Write the figure once for each format; the paths."""
    paths = [folder / f"{name}.{kind}" for kind in formats]
    for path in paths:
        kind = path.suffix[1:]
        metadata = {"CreationDate": None} if kind == "pdf" else {"Software": None}  # the same picture, the same file
        write_atomically(
            path,
            lambda file, kind=kind, metadata=metadata: figure.savefig(  # type: ignore[misc]
                file, dpi=150, format=kind, metadata=metadata
            ),
        )
    return paths
