"""From the store to records: every run that can be read, and a note on everything that cannot."""

from __future__ import annotations

import json
import math
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from borat.lab.config import RunConfig
from borat.lab.store.run import Metrics, Run, find_runs

STATUSES = ("finished", "diverged", "running")
NAMED = 3
"""How many of the folders with the same problem a note names."""
LONGEST_REASON = 100


@dataclass(frozen=True)
class Record:
    """One run as it was found."""

    name: str
    """Its folder, seen from the folder of the report."""
    config: RunConfig
    metrics: Metrics

    @property
    def status(self) -> str:
        return self.metrics.status

    @property
    def accuracy(self) -> float | None:
        """On the test split, or on the validation split where there is none; None before the end of the run."""
        result = self.metrics.result
        return number(result.get("test_accuracy", result.get("validation_accuracy")))

    @property
    def metric(self) -> str:
        return "test accuracy" if "test_accuracy" in self.metrics.result else "validation accuracy"

    def last(self, key: str) -> float | None:
        """A measurement of the last epoch."""
        return number(self.metrics.epochs[-1].get(key)) if self.metrics.epochs else None

    @property
    def seconds(self) -> float:
        return sum(number(epoch.get("seconds")) or 0.0 for epoch in self.metrics.epochs)


@dataclass(frozen=True)
class Experiment:
    """What ``borat reproduce`` left beside its runs: a table of the paper and ours."""

    folder: str
    """Seen from the folder of the report; empty for that folder itself."""
    title: str
    source: str
    scale: str
    metric: str
    columns: list[str]
    paper: dict[str, dict[str, Any]]
    """Method, then column; as it is printed there, accuracies in per cent."""
    ours: dict[str, dict[str, Any]]
    """Method, then column: mean, std and number of runs; accuracies between 0 and 1."""
    heatmap: dict[str, dict[str, Any]]
    """The paper's accuracies in per cent: method, then ``"<lr>|<radius>"``."""
    claims: list[dict[str, Any]]
    """What the paper says, and whether these runs support it: text, column, verdict, numbers."""


@dataclass
class Collection:
    """All that a report is made from."""

    records: list[Record] = field(default_factory=list)
    experiments: list[Experiment] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def collect(folder: Path) -> Collection:
    """Read every run and every table of results below a folder."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder" if folder.exists() else f"the folder {folder} does not exist")
    found = Collection()
    problems: dict[tuple[str, str], list[str]] = {}
    """The folders with a problem, for a reason."""
    for run in find_runs(folder):
        name = _seen_from(folder, run.path)
        try:
            config = run.config
        except (ValueError, TypeError) as error:
            problems.setdefault(("holds no run of borat, skipped", _reason(error, run.path)), []).append(name)
            continue
        try:
            found.records.append(Record(name, config, _checked(run)))
        except (ValueError, TypeError) as error:
            problems.setdefault(("cannot be read in full, skipped", _reason(error, run.path)), []).append(name)
    found.records, copies = _without_copies(found.records)
    if copies:
        problems["repeats a run that is shown, skipped", ""] = copies
    for path in sorted(folder.rglob("experiment.json")):
        try:
            found.experiments.append(_read_experiment(path, folder))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            name = _seen_from(folder, path.parent)
            reason = _reason(error, path.parent)
            problems.setdefault(("has an experiment.json that cannot be read", reason), []).append(name)
    early = [record.name for record in found.records if not record.metrics.epochs]
    if early:
        problems["has no finished epoch yet", ""] = early
    found.notes = [_note(*problem, names) for problem, names in problems.items()]
    return found


def _seen_from(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix() if path != folder else folder.resolve().name


def _reason(error: Exception, path: Path) -> str:
    return textwrap.shorten(str(error).replace(f"{path}{os.sep}", ""), LONGEST_REASON, placeholder=" …")


def _checked(run: Run) -> Metrics:
    metrics = run.metrics
    if metrics.status not in STATUSES:
        raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {metrics.status!r}")
    if not isinstance(metrics.epochs, list) or not all(isinstance(epoch, dict) for epoch in metrics.epochs):
        raise ValueError("epochs must be a list of records")
    if not isinstance(metrics.result, dict):
        raise ValueError("result must hold names and values")
    for epoch in metrics.epochs:
        kinds = epoch.get("kinds") or {}
        if not isinstance(kinds, dict) or not all(isinstance(count, int) for count in kinds.values()):
            raise ValueError(f"kinds must hold names and counts, got {kinds!r}")
    return metrics


def _without_copies(records: list[Record]) -> tuple[list[Record], list[str]]:
    """Only one run of each configuration, the furthest: a copy is no further seed."""
    furthest: dict[RunConfig, Record] = {}
    for record in records:
        rival = furthest.get(record.config)
        if rival is None or len(rival.metrics.epochs) < len(record.metrics.epochs):
            furthest[record.config] = record
    kept = [record for record in records if furthest[record.config] is record]
    return kept, [record.name for record in records if furthest[record.config] is not record]


def _read_experiment(path: Path, folder: Path) -> Experiment:
    values = json.loads(path.read_text(encoding="utf-8"))
    return Experiment(
        folder=path.parent.relative_to(folder).as_posix().removeprefix("."),
        title=str(values["title"]),
        source=str(values["source"]),
        scale=str(values["scale"]),
        metric=str(values["metric"]),
        columns=[str(column) for column in values["columns"]],
        paper=_tables(values["paper"]),
        ours=_tables(values["ours"]),
        heatmap=_tables(values.get("heatmap_paper") or {}),
        claims=[dict(claim) for claim in values.get("claims") or []],
    )


def _tables(values: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {str(method): dict(entries) for method, entries in values.items()}


def _note(problem: str, reason: str, names: Sequence[str]) -> str:
    """One sentence for all folders with the same problem for the same reason."""
    text = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    subject = problem if len(names) == 1 else f"(each) {problem}"
    return f"{text} {subject}" + (f" ({reason})" if reason else "")
