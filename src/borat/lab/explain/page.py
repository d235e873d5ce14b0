"""The interactive page: one self-contained HTML file, drawn as SVG by a small script.

A plotting library would add megabytes. The page has a few hundred kilobytes, nearly all of them the optimizer's
numbers. It works offline and adapts to the reader's colour scheme and screen.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from borat.lab.explain import frames
from borat.lab.explain.frames import SIZES, Example, Frame, FreeFrame


@cache
def render() -> str:
    """Compute all frames and return the page as HTML."""
    data = {
        "sizes": SIZES,
        "calls": {"borat": frames.CALLS, "free": frames.FREE_CALLS},
        "examples": [_example(example) for example in frames.EXAMPLES],
    }
    page = _read("page.html").replace("/*STYLE*/", _read("page.css"))
    page = page.replace("/*SCRIPT*/", "\n".join(map(_read, ("drawing.js", "story.js", "page.js"))))
    return page.replace("/*DATA*/", json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False))


def _example(example: Example) -> dict[str, Any]:
    """Return an example and its frames: BORAT's by learning rate, size and start, FreeBORAT's by size and start."""
    lr, size, start = example.first
    shown = {key: getattr(example, key) for key in ("name", "formula", "window", "highest", "rates", "starts")}
    return shown | {
        "first": [example.rates.index(lr), SIZES.index(size), example.starts.index(start)],
        "samples": [[round(v, 5) for v in example.curve(i).tolist()] for i in range(len(example.samples))],
        "frames": [
            [[_rows(frames.trajectory(example, lr, size, start)) for start in example.starts] for size in SIZES]
            for lr in example.rates
        ],
        "free": [[_rows(frames.free_trajectory(example, size, start)) for start in example.starts] for size in SIZES],
    }


def _rows(trajectory: Sequence[Frame | FreeFrame]) -> list[list[float | str]]:
    """Return the fields of the frames, except FreeBORAT's points before a step, which the previous frame has."""
    known = ("point", "centre") if isinstance(trajectory[0], FreeFrame) else ()
    fields = [field for field in trajectory[0]._fields if field not in known]
    values = [[getattr(frame, field) for field in fields] for frame in trajectory]
    return [[_short(x) for value in row for x in (value if isinstance(value, tuple) else [value])] for row in values]


def _short(value: float | str) -> float | str:
    """Round a number to six decimals, to an integer if it is one, without a negative zero."""
    if isinstance(value, str):
        return value
    short = round(value, 6) + 0.0
    return int(short) if short == int(short) else short


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
