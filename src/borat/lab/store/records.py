"""Runs as a table: every run below a folder that can be read, and a note on everything that cannot."""

from __future__ import annotations

import math
import os
import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from borat.lab.config import RunConfig
from borat.lab.files import check_folder
from borat.lab.metrics import METRICS, best
from borat.lab.store.experiment import NAME, Experiment
from borat.lab.store.run import STATUSES, Metrics, Run, find_runs

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

ALWAYS = ("train_loss", "validation_accuracy", "validation_loss")
"""Measurements that the table has even if no run has them."""
RESULTS = {"accuracy": "accuracy", "final_loss": "loss", "perplexity": "perplexity"}
"""Columns, and the measurement of the test split, or of the validation split where there is none."""
COUNTS = ("train_limit", "validation_size", "image_size", "window", "steps")
"""Keys of a configuration that are whole numbers where they are given."""
NAMED = 3
"""Number of folders with the same problem that a note names."""
LONGEST_REASON = 100


def read_runs(folder: str | Path, names: Iterable[str] | None = None) -> pd.DataFrame:
    """The runs below a folder, one row for each, in the order of their names.

    Args:
        folder: where the runs are, at any depth.
        names: of the only runs to read, as the index has them; all of them must be there. Without it, what cannot be
            read is left out with a warning, and so are copies of a run.

    Returns:
        a table. Its index ``run`` is a run's folder, seen from ``folder``. Its columns are ``method``, as figures call
        it; every key of :class:`~borat.lab.config.RunConfig`, where no radius is NaN; ``status``, one of finished,
        diverged, failed and running; ``epochs_done`` and ``seconds`` of training; what was measured after the last
        epoch and at the end, such as ``train_loss`` and ``test_accuracy``, accuracies between 0 and 1; ``accuracy``,
        that of the test split or, where there is none, of the validation split, once the run has ended; ``final_loss``
        and ``perplexity``, likewise; and ``history``, the records of its epochs.

    Example:
        ``runs[runs.status == "finished"].groupby(["method", "lr"]).test_accuracy.agg(["mean", "std"])`` has the mean
        and the spread over everything else, such as seeds.
    """
    folder = Path(folder)
    if names is not None:
        return as_table((name, (run := Run(folder / name)).config, _checked(run)) for name in names)
    found = collect(folder)
    for note in found.notes:
        warnings.warn(note, stacklevel=2)
    return found.runs


def as_table(records: Iterable[tuple[str, RunConfig, Metrics]]) -> pd.DataFrame:
    """One row for each run: its name, its configuration and what it measured."""
    import pandas as pd  # slow to import, and not needed to train

    rows = [_row(*record) for record in records]
    measured = [name for name in METRICS if name in ALWAYS or any(name in row for row in rows)]
    columns = ["run", "method", *RunConfig.model_fields, "status", "epochs_done", "seconds", *measured, *RESULTS]
    table = pd.DataFrame(rows, columns=[*columns, "history"]).set_index("run")
    numbers = dict.fromkeys([*measured, *RESULTS, "radius", "shift", "clip", "seconds"], float)
    return table.astype({**numbers, **dict.fromkeys(COUNTS, "Int64")})


def _row(name: str, config: RunConfig, metrics: Metrics) -> dict[str, Any]:
    last = metrics.epochs[-1] if metrics.epochs else {}
    found = {key: number(value) for key, value in {**last, **metrics.result}.items() if key in METRICS}
    result = metrics.result
    ended = {key: result.get(f"test_{name}", result.get(f"validation_{name}")) for key, name in RESULTS.items()}
    return {
        "run": name,
        "method": config.method,
        **config.as_dict(),
        "status": metrics.status,
        "epochs_done": len(metrics.epochs),
        "seconds": sum(number(epoch.get("seconds")) or 0.0 for epoch in metrics.epochs),
        **found,
        **{key: number(value) for key, value in ended.items()},
        "history": metrics.epochs,
    }


def configs_of(runs: pd.DataFrame) -> list[RunConfig]:
    """Return the configuration of each row."""
    import pandas as pd

    rows = runs[list(RunConfig.model_fields)].astype(object).to_dict("records")
    known: list[dict[str, Any]] = [{key: None if pd.isna(x) else x for key, x in row.items()} for row in rows]
    return [RunConfig(**row) for row in known]


def curve(history: Iterable[Mapping[str, Any]], metric: str) -> list[float]:
    """A measurement after each epoch, where it is made then."""
    return [float(epoch[metric]) for epoch in history if epoch.get(metric) is not None]


def best_setting(settings: Mapping[T, pd.DataFrame], select_on: str) -> T | None:
    """The setting with the best mean of a measurement, each given by its runs; None where none has one.

    They are compared by the seeds that all of them have ended with, or by all if there is none: one that was chosen and
    only then trained with further seeds stays the chosen one. Of the runs that are compared, all must have finished.
    """
    ended = {name: runs[runs.status != "running"] for name, runs in settings.items()}
    seeds = [set(runs.seed) for runs in ended.values() if len(runs)]
    shared = set.intersection(*seeds) if seeds else set()

    def score(name: T) -> float:
        runs = ended[name]
        runs = runs[runs.seed.isin(shared)] if shared else runs
        if select_on not in runs or not (runs.status == "finished").all():
            return math.nan
        return float(runs[select_on].mean(skipna=False))

    return best(settings, score, select_on)


def number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


@dataclass
class Collection:
    """All that a report is made from."""

    runs: pd.DataFrame
    experiments: list[Experiment] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def collect(folder: Path) -> Collection:
    """Read every run and every table of results below a folder."""
    check_folder(folder)
    records: list[tuple[str, RunConfig, Metrics]] = []
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
            records.append((name, config, _checked(run)))
        except (ValueError, TypeError) as error:
            problems.setdefault(("cannot be read in full, skipped", _reason(error, run.path)), []).append(name)
    kept, copies = _without_copies(records)
    if copies:
        problems["repeats a run that is shown, skipped", ""] = copies
    experiments = _read_experiments(folder, problems)
    early = [name for name, _, metrics in kept if not metrics.epochs]
    if early:
        problems["has no finished epoch yet", ""] = early
    return Collection(as_table(kept), experiments, [_note(*problem, names) for problem, names in problems.items()])


def _read_experiments(folder: Path, problems: dict[tuple[str, str], list[str]]) -> list[Experiment]:
    found = []
    for path in sorted(folder.rglob(NAME)):
        try:
            found.append(Experiment.read(path, folder))
        except (ValueError, TypeError, AttributeError) as error:
            problem = (f"has an {NAME} that cannot be read", _reason(error, path.parent))
            problems.setdefault(problem, []).append(_seen_from(folder, path.parent))
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


def _without_copies(
    records: list[tuple[str, RunConfig, Metrics]],
) -> tuple[list[tuple[str, RunConfig, Metrics]], list[str]]:
    """Only one run of each configuration, the furthest: a copy is no further seed."""
    furthest: dict[str, tuple[str, RunConfig, Metrics]] = {}
    for record in records:
        _, config, metrics = record
        rival = furthest.get(config.digest)
        if rival is None or len(rival[2].epochs) < len(metrics.epochs):
            furthest[config.digest] = record
    kept = {record[0] for record in furthest.values()}
    return [record for record in records if record[0] in kept], [name for name, *_ in records if name not in kept]


def _note(problem: str, reason: str, names: Sequence[str]) -> str:
    """One sentence for all folders with the same problem for the same reason."""
    text = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    subject = problem if len(names) == 1 else f"(each) {problem}"
    return f"{text} {subject}" + (f" ({reason})" if reason else "")
