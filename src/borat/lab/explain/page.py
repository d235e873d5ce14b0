"""The interactive page: one HTML file with everything in it, drawn as SVG by a small script of its own.

A plotting library would weigh megabytes and decide how things look; the page is a few hundred kilobytes, nearly all of
them the optimizer's numbers, needs no network, and follows the reader's colour scheme and screen.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from borat.lab.explain.frames import (
    CALLS,
    EXAMPLES,
    FREE_CALLS,
    SIZES,
    Example,
    Frame,
    FreeFrame,
    free_trajectory,
    trajectory,
)
from borat.lab.files import write_text


def write_page(path: Path) -> None:
    """Compute all frames and write the page."""
    if not path.parent.is_dir():
        raise ValueError(f"the folder {path.parent} does not exist")
    write_text(path, render())


@cache
def render() -> str:
    """The page as text."""
    data = {
        "sizes": SIZES,
        "calls": {"borat": CALLS, "free": FREE_CALLS},
        "examples": [_example(example) for example in EXAMPLES],
    }
    parts = {
        "/*STYLE*/": _read("page.css"),
        "/*SCRIPT*/": "\n".join(_read(name) for name in ("drawing.js", "story.js", "page.js")),
        "/*DATA*/": json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False),
    }
    page = _read("page.html")
    for mark, text in parts.items():
        page = page.replace(mark, text)
    return page


def _example(example: Example) -> dict[str, Any]:
    """An example and its frames: BORAT's by learning rate, bundle size and start, FreeBORAT's by the latter two."""
    return {
        "name": example.name,
        "formula": example.formula,
        "window": example.window,
        "highest": example.highest,
        "rates": example.rates,
        "starts": example.starts,
        "first": [
            example.rates.index(example.first_rate),
            SIZES.index(example.first_size),
            example.starts.index(example.first_start),
        ],
        "samples": [[round(v, 5) for v in example.curve(i).tolist()] for i in range(len(example.samples))],
        "frames": [
            [
                [[_row(frame) for frame in trajectory(example, lr, size, start)] for start in example.starts]
                for size in SIZES
            ]
            for lr in example.rates
        ],
        "free": [
            [[_free_row(frame) for frame in free_trajectory(example, size, start)] for start in example.starts]
            for size in SIZES
        ],
    }


def _row(frame: Frame) -> list[float | str]:
    numbers = (frame.point, frame.loss, frame.slope, frame.goal)
    point, loss, slope, goal = (_short(number) for number in numbers)
    return [frame.sample, point, loss, slope, goal, frame.kind, *(_short(a) for a in frame.alpha)]


def _free_row(frame: FreeFrame) -> list[float]:
    """Without the points before the step: they are those after the one before."""
    model = (frame.loss, frame.slope, frame.target, frame.height, frame.width)
    numbers = (*model, frame.goal, frame.average, frame.next_point)
    return [frame.sample, *(_short(number) for number in (*numbers, *frame.alpha))]


def _short(number: float) -> float:
    """Six decimals, without the sign of a zero; an integer where it is one."""
    short = round(number, 6) + 0.0
    return int(short) if short == int(short) else short


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
