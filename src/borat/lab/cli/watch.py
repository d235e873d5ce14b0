"""Progress of a sweep on the terminal, and runs in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from borat.lab.cli.common import echo, progress_bar
from borat.lab.config import NAMED_BY_METHOD, RunConfig
from borat.lab.metrics import unseen, with_unit
from borat.lab.sweeps.jobs import Outcome, SweepProgress, Watch


@contextmanager
def watching() -> Iterator[Watch]:
    """Yield a function that prints a line for each run that ends and, on a terminal, shows a progress bar."""
    shown: set[str] = set()
    with progress_bar("") as show_bar:

        def watch(progress: SweepProgress) -> None:
            keys = varying([point.job.config for point in progress.points])
            for point in progress.points:
                if point.is_new and point.outcome is not None and point.job.config.digest not in shown:
                    shown.add(point.job.config.digest)
                    echo(f"{describe(point.job.config, keys)}: {describe_end(point.outcome)} ({progress})")
            show_bar(progress.done, progress.size, str(progress))

        yield watch


def varying(configs: Sequence[RunConfig]) -> list[str]:
    """Return the keys that have several values, except those in the name of the method."""
    keys = [key for key in RunConfig.model_fields if key not in NAMED_BY_METHOD]
    return [key for key in keys if len({getattr(config, key) for config in configs}) > 1]


def describe(config: RunConfig, keys: Sequence[str]) -> str:
    """Return the method of a configuration and the values of some keys.

    >>> describe(RunConfig(optimizer="sgd", lr=1.0), ["lr", "radius"])
    'SGD, lr 1, radius none'
    """
    return ", ".join([config.method, *(f"{key} {value_text(getattr(config, key))}" for key in keys)])


def value_text(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def describe_end(outcome: Outcome) -> str:
    """Return the status of a run that ended, with its error or its result."""
    if outcome.error:
        return f"{outcome.status}: {outcome.reason}"
    result = unseen(outcome.result)
    names = [name for name in result if "accuracy" in name] or list(result)
    return ", ".join([outcome.status, *(f"{name.replace('_', ' ')} {with_unit(name, result[name])}" for name in names)])


def describe_failures(outcomes: Sequence[Outcome]) -> list[str]:
    """Return each reason for failed runs, with these runs in a second line."""
    keys = varying([outcome.config for outcome in outcomes])
    failed: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.status == "failed":
            failed.setdefault(outcome.reason, []).append(describe(outcome.config, keys))
    return [f"{reason}\n  {'; '.join(names)}" for reason, names in failed.items()]
