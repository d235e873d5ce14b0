"""The tables of run times, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from borat.lab.bench import machine
from borat.lab.bench_report import Table
from borat.lab.result_tables import DASH, heading
from borat.lab.results import Report, as_markdown, duration
from borat.lab.runtime import EpochTime
from borat.lab.spec import Runtime, Spec

COLUMN = "seconds an epoch"


def report(
    spec: Spec, runtime: Runtime, scale: str, times: Sequence[EpochTime], seconds: float, command: str
) -> Report:
    table = _table(spec, runtime, scale, times)
    remarks = [
        f"Ratios are to {runtime.reference}. {machine()}.",
        f"An epoch is {-(-runtime.examples // runtime.batch_size)} batches of {runtime.batch_size}.",
    ]
    timing = f"{duration(seconds)} for the command"
    return Report([table], as_markdown(spec, scale, [table], command, timing, remarks), _as_json(spec, scale, times))


def _table(spec: Spec, runtime: Runtime, scale: str, times: Sequence[EpochTime]) -> Table:
    reference = next(t for t in times if t.name == runtime.reference)
    published = {row: cells[COLUMN].mean for row, cells in spec.paper.items()}
    rows: list[tuple[str, ...]] = []
    for t in times:
        paper = published.get(t.name)
        rows.append((
            t.name,
            f"{t.seconds / reference.seconds:.3f}",
            DASH if paper is None else f"{paper / published[runtime.reference]:.2f}",
            f"{t.seconds:.1f}",
            DASH if paper is None else f"{paper:g}",
            f"{t.steps:.1f}",
            f"{t.steps / reference.steps:.2f}",
        ))  # fmt: skip
    head = (
        "optimizer",
        "ratio, ours",
        "ratio, paper",
        "epoch, s, ours",
        "epoch, s, paper",
        "optimizer, s",
        "its ratio",
    )
    return Table(heading(spec, scale), head, rows)


def _as_json(spec: Spec, scale: str, times: Sequence[EpochTime]) -> dict[str, Any]:
    return {
        "title": spec.title,
        "source": spec.source,
        "scale": scale,
        "metric": "seconds",
        "columns": [COLUMN],
        "paper": {row: {COLUMN: cells[COLUMN].mean} for row, cells in spec.paper.items()},
        "ours": {t.name: {COLUMN: {"mean": t.seconds, "std": None, "runs": 1}} for t in times},
    }
