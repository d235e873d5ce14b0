"""Runs as a table, and the tables of experiments, from all subfolders; notes name the files that cannot be read."""

from __future__ import annotations

import math
import os
import textwrap
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from borat.lab.config import RunConfig
from borat.lab.files import check_folder, read_mapping, write_json
from borat.lab.metrics import METRICS, best
from borat.lab.store.run import Metrics, Run
from borat.lab.strict import Listed, StrictModel
from borat.lab.tables import Table

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
Record = tuple[str, RunConfig, Metrics]
"""The name of a run, its configuration and its measurements."""
EXPERIMENT = "experiment.json"
"""The file of an :class:`Experiment`."""
ALWAYS = ("train_loss", "validation_accuracy", "validation_loss")
"""Measurements that always have a column, even if no run has them."""
RESULTS = {"accuracy": "accuracy", "final_loss": "loss", "perplexity": "perplexity"}
"""Columns and their measures on the test split, or on the validation split if there is no test split."""
COUNTS = ("train_limit", "validation_size", "image_size", "window", "steps")
"""Optional keys of a configuration that are integers."""
NAMED = 3
"""Largest number of folders that a note names."""
LONGEST_REASON = 100


def read_runs(folder: str | Path, names: Iterable[str] | None = None) -> pd.DataFrame:
    """Return the runs below a folder as a table, one row for each, in the order of their names.

    Args:
        folder: the folder that holds the runs, at any depth.
        names: read only these runs, as the index names them; all must exist. By default, all runs are read; those that
            cannot be read are left out with a warning, and so are copies of a run.

    Returns:
        a table. Its index ``run`` is a run's folder relative to ``folder``. Its columns are ``method``, as in figures;
        every key of :class:`~borat.lab.config.RunConfig`, with NaN for no radius; ``status``, one of finished,
        diverged, failed and running; ``epochs_done`` and ``seconds`` of training; the measurements after the last
        epoch and at the end, such as ``train_loss`` and ``test_accuracy``, accuracies between 0 and 1; ``accuracy``,
        that of the test split or, if there is none, of the validation split, once the run has ended; ``final_loss``
        and ``perplexity``, likewise; ``config``, the RunConfig itself; and ``history``, the records of its epochs.

    Example:
        ``runs[runs.status == "finished"].groupby(["method", "lr"]).test_accuracy.agg(["mean", "std"])`` has the mean
        and the spread over everything else, such as seeds.
    """
    folder = Path(folder)
    if names is not None:
        return as_table((name, Run(folder / name).config, Run(folder / name).metrics) for name in names)
    found = collect(folder)
    for note in found.notes:
        warnings.warn(note, stacklevel=2)
    return found.runs


def as_table(records: Iterable[Record]) -> pd.DataFrame:
    """Return a table of runs, one row for each."""
    import pandas as pd  # slow to import, and not needed to train

    rows = [_row(*record) for record in records]
    measured = [name for name in METRICS if name in ALWAYS or any(name in row for row in rows)]
    columns = ["run", "method", *RunConfig.model_fields, "status", "epochs_done", "seconds", *measured, *RESULTS]
    table = pd.DataFrame(rows, columns=[*columns, "config", "history"]).set_index("run")
    numbers = dict.fromkeys([*measured, *RESULTS, "radius", "shift", "clip", "seconds"], float)
    return table.astype({**numbers, **dict.fromkeys(COUNTS, "Int64")})


def _row(name: str, config: RunConfig, metrics: Metrics) -> dict[str, Any]:
    last, result = (metrics.epochs or [{}])[-1], metrics.result
    ended = {key: result.get(f"test_{name}", result.get(f"validation_{name}")) for key, name in RESULTS.items()}
    measured = {key: value for key, value in {**last, **result}.items() if key in METRICS} | ended
    return {
        "run": name,
        "method": config.method,
        **config.as_dict(),
        "status": metrics.status,
        "epochs_done": len(metrics.epochs),
        "seconds": sum(number(epoch.get("seconds")) or 0.0 for epoch in metrics.epochs),
        **{key: number(value) for key, value in measured.items()},
        "config": config,
        "history": metrics.epochs,
    }


def curve(history: Iterable[Mapping[str, Any]], metric: str) -> list[float]:
    """Return a measurement after each epoch in which it was made."""
    return [float(epoch[metric]) for epoch in history if epoch.get(metric) is not None]


def by_setting(runs: pd.DataFrame) -> dict[RunConfig, pd.DataFrame]:
    """Return the runs of each setting, which differ only in their seeds, by their configuration with the seed 0."""
    return dict(list(runs.groupby(runs.config.map(lambda config: config.replace(seed=0)), sort=False)))


def best_setting(settings: Mapping[T, pd.DataFrame], select_on: str) -> T | None:
    """Return the setting whose runs have the best mean of a measurement, or None if none has one.

    Settings are compared by the seeds that all of them have ended with, or by all seeds if there is no such seed: a
    setting that was chosen and then trained with further seeds stays the chosen one. All compared runs must have
    finished.
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
    """Return a finite number as a float, and None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


class Experiment(StrictModel):
    """The tables that ``borat reproduce`` keeps beside its runs, and ``borat report`` shows."""

    title: str
    source: str
    scale: str
    select_on: str = "validation_accuracy"
    """The metric by which the best runs were chosen."""
    tables: Listed[Table]
    folder: str = ""
    """Its folder relative to the folder of a report; empty for that folder itself."""

    def write(self, folder: Path) -> Path:
        """Write the file into a folder of runs; return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / EXPERIMENT, self.model_dump(exclude={"folder"}))
        return folder / EXPERIMENT

    @classmethod
    def read(cls, path: Path, seen_from: Path) -> Self:
        """Read a file, for a report on the folder ``seen_from``."""
        return cls(**read_mapping(path), folder=path.parent.relative_to(seen_from).as_posix().removeprefix("."))


@dataclass
class Collection:
    """Runs and experiments below a folder."""

    runs: pd.DataFrame
    experiments: list[Experiment] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def collect(folder: Path) -> Collection:
    """Read every run and every table of results below a folder."""
    check_folder(folder)
    records: list[Record] = []
    problems: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    """Folders with a problem, by the problem and its reason."""
    for run in (Run(path.parent) for path in sorted(folder.rglob("config.json"))):
        name, problem = _relative(run.path, folder), "holds no run of borat, skipped"
        try:
            config = run.config
            problem = "cannot be read in full, skipped"
            records.append((name, config, run.metrics))
        except (ValueError, TypeError) as error:
            problems[problem, _reason(error, run.path)].append(name)
    kept = _without_copies(records)
    shown = {name for name, *_ in kept}
    problems["repeats a run that is shown, skipped", ""] = [name for name, *_ in records if name not in shown]
    experiments = []
    for path in sorted(folder.rglob(EXPERIMENT)):
        try:
            experiments.append(Experiment.read(path, folder))
        except (ValueError, TypeError, AttributeError) as error:
            problem = f"has an {EXPERIMENT} that cannot be read"
            problems[problem, _reason(error, path.parent)].append(_relative(path.parent, folder))
    running = [(name, metrics) for name, _, metrics in kept if metrics.status == "running"]
    problems["has no finished epoch yet", ""] = [name for name, metrics in running if not metrics.epochs]
    notes = [_note(*problem, names) for problem, names in problems.items() if names]
    return Collection(as_table(kept), experiments, notes)


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path != folder else folder.resolve().name


def _reason(error: Exception, path: Path) -> str:
    return textwrap.shorten(str(error).replace(f"{path}{os.sep}", ""), LONGEST_REASON, placeholder=" …")


def _without_copies(records: Sequence[Record]) -> list[Record]:
    """Return one run of each configuration, the one with the most epochs: a copy is not another seed."""
    furthest: dict[str, Record] = {}
    for record in sorted(records, key=lambda record: len(record[2].epochs), reverse=True):
        furthest.setdefault(record[1].digest, record)
    return [record for record in records if furthest[record[1].digest] is record]


def _note(problem: str, reason: str, names: Sequence[str]) -> str:
    """Return one sentence for all folders with the same problem for the same reason."""
    text = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    subject = problem if len(names) == 1 else f"(each) {problem}"
    return f"{text} {subject}" + (f" ({reason})" if reason else "")
