"""The result of an experiment as it is shown and written: tables, Markdown, and JSON for the report."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from borat.lab.metrics import metric_text
from borat.lab.reproduce.board_tables import board_remarks, board_tables
from borat.lab.reproduce.claims import Verdict, check_claims
from borat.lab.reproduce.run import Result
from borat.lab.reproduce.scoreboard import Board, make_board
from borat.lab.reproduce.spec import Published, Spec, Study
from borat.lab.reproduce.tables import SECONDS, fit_metric, paper_row, reported_rows, runtime_table, tables
from borat.lab.store.experiment import CheckedClaim, Experiment, Ours, ShownTable
from borat.lab.store.run import describe_environment
from borat.lab.tables import Table
from borat.lab.timing.epochs import EpochTime
from borat.lab.timing.optimizers import machine
from borat.lab.timing.runtime import Runtime


@dataclass(frozen=True)
class ResultPage:
    """What a command shows and writes."""

    tables: list[Table]
    markdown: str
    experiment: Experiment
    """What ``borat report`` reads."""
    board: Board | None = None
    """Of a scoreboard, to be drawn."""


def report(result: Result, command: str, picture: str = "") -> ResultPage:
    """The result of training runs; ``picture`` is where that of a scoreboard is, seen from the page."""
    if result.spec.kind == "scoreboard":
        return _scoreboard_report(result, command, picture)
    shown = tables(result)
    remarks = _changed(result)
    how = how_measured if result.spec.kind == "grid" else how_chosen
    remarks += how(result.spec, result.study.seeds)
    text = as_markdown(result.study, shown, command, timing_text(result), remarks)
    return ResultPage(shown, text, as_experiment(result))


def _scoreboard_report(result: Result, command: str, picture: str) -> ResultPage:
    spec, board = result.spec, make_board(result)
    shown = board_tables(result, board)
    remarks = [*_changed(result), *board_remarks(spec), f"The seeds are {_listed(result.study.seeds)}."]
    text = as_markdown(result.study, shown, command, timing_text(result), remarks, picture)
    texts = [ShownTable(title=t.title, head=list(t.head), rows=[list(row) for row in t.rows]) for t in shown]
    experiment = Experiment(
        title=spec.title,
        source=spec.source,
        scale=result.study.scale,
        metric=spec.metric,
        select_on=spec.select_on,
        columns=result.columns,
        paper={},
        ours={},
        tables=texts,
    )
    return ResultPage(shown, text, experiment, board)


def _changed(result: Result) -> list[str]:
    changed = "; ".join(f"{key} {text}" for key, text in changes_text(result.study.changes).items())
    return [f"Changed by hand for this result: {changed}."] if changed else []


def changes_text(changes: Mapping[str, Any]) -> dict[str, str]:
    """Values as the command line takes them; of a file, only the name."""
    texts = {}
    for key, value in changes.items():
        values = value if isinstance(value, list) else [value]
        texts[key] = ",".join("none" if v is None else Path(v).name if key == "glove" else f"{v}" for v in values)
    return texts


def as_markdown(
    study: Study,
    shown: Iterable[Table],
    command: str,
    timing: str,
    remarks: Iterable[str],
    picture: str = "",
) -> str:
    """The whole result: what was asked, how it was run, what came out."""
    spec, scale, environment = study.spec, study.scale, describe_environment()
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    facts = [f"Paper: {spec.source}.", f"Scale: **{scale}**.", f"Data: {spec.needs}." if spec.needs else ""]
    parts = [
        f"# {spec.title}: {scale} scale",
        " ".join(fact for fact in facts if fact),
        f"{spec.question}",
        *([f"![{spec.title}]({picture})"] if picture else ()),
        *(table.as_markdown().strip() for table in shown),
        *_list("Remarks", [*remarks, *(f"{mark}: {meaning}." for mark, meaning in spec.marks.items())]),
        *(_list("What the mini scale changes", spec.mini.differences) if scale == "mini" else ()),
        f"## The protocol at full scale\n\n{spec.protocol.strip()}",
        *_list("Notes", spec.notes),
        f"## How this was made\n\n    {command}\n\n{date.today().isoformat()}, {timing}. "
        f"{environment['machine']}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}.",
    ]
    return "\n\n".join(parts) + "\n"


def _list(title: str, lines: Iterable[str]) -> list[str]:
    text = "\n".join(f"- {line}" for line in lines)
    return [f"## {title}\n\n{text}"] if text else []


def how_measured(spec: Spec, seeds: Sequence[int]) -> list[str]:
    """The cells of a grid."""
    one = "one run" if len(seeds) == 1 else f"the mean over the seeds {_listed(seeds)}, and diverged if one of them has"
    fitted = metric_text(fit_metric(spec)).removesuffix(", %")
    return [
        f"Each cell is {one}; it is measured with the weights after the last epoch, or their average where that is the "
        "result of a method.",
        f"The {fitted} is measured in the same way, on all training examples with the labels that are trained on.",
    ]


def how_chosen(spec: Spec, seeds: Sequence[int]) -> list[str]:
    on = spec.select_on.replace("_", " ")
    chosen = (
        f"Chosen is the configuration with the best {on} after its last epoch, with the first seed; what is shown is "
        "measured with the weights of the last epoch (the authors' code tests those of the best epoch)."
    )
    spread = f"± is the standard deviation over the seeds {_listed(seeds)}."
    return [chosen, spread] if len(seeds) > 1 else [chosen]


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def timing_text(result: Result) -> str:
    found = f", which found {result.found} of them begun or done" if result.found else ""
    return (
        f"{len(result.runs)} runs, {duration(float(result.runs.seconds.sum()))} of training in all, "
        f"{duration(result.seconds)} for the command{found}"
    )


def duration(seconds: float) -> str:
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200.0 else f"{seconds / 3600:.1f} h"


def as_experiment(result: Result) -> Experiment:
    """What ``borat report`` shows beside the runs."""
    spec = result.spec
    ours: dict[str, dict[str, Ours]] = {method: {} for method in result.methods}
    for cell in result.cells:
        mean = None if math.isnan(cell.mean) else cell.mean
        ours[cell.cell.method][cell.cell.column] = Ours(mean=mean, std=cell.std, runs=len(cell.values))
    rows = {method: paper_row(spec, method) for method in result.methods} | {row: row for row in reported_rows(spec)}
    return Experiment(
        title=spec.title,
        source=spec.source,
        scale=result.study.scale,
        metric=spec.metric,
        select_on=spec.select_on,
        columns=result.columns,
        paper={name: {c: _mean(spec.paper.get(row, {}), c) for c in result.columns} for name, row in rows.items()},
        ours=ours,
        claims=[_checked(verdict) for verdict in check_claims(result)],
    )


def _checked(verdict: Verdict) -> CheckedClaim:
    numbers = {name: number if math.isfinite(number) else None for name, number in verdict.numbers.items()}
    return CheckedClaim(
        text=verdict.claim.text, column=verdict.column, verdict=verdict.word, numbers=numbers, metric=verdict.metric
    )


def _mean(row: Mapping[str, Published], column: str) -> float | None:
    return row[column].mean if column in row else None


def runtime_report(
    study: Study, runtime: Runtime, times: Sequence[EpochTime], seconds: float, command: str
) -> ResultPage:
    table = runtime_table(study, runtime, times)
    remarks = [
        f"Ratios are to {runtime.reference}. {machine()}.",
        f"An epoch is {-(-runtime.examples // runtime.batch_size)} batches of {runtime.batch_size}.",
    ]
    timing = f"{duration(seconds)} for the command"
    return ResultPage([table], as_markdown(study, [table], command, timing, remarks), _runtime_experiment(study, times))


def _runtime_experiment(study: Study, times: Sequence[EpochTime]) -> Experiment:
    spec = study.spec
    return Experiment(
        title=spec.title,
        source=spec.source,
        scale=study.scale,
        metric="seconds",
        columns=[SECONDS],
        paper={row: {SECONDS: cells[SECONDS].mean} for row, cells in spec.paper.items()},
        ours={t.name: {SECONDS: Ours(mean=t.seconds, runs=1)} for t in times},
    )
