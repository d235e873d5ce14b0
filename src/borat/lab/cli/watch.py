"""Display of a running sweep: a live table on a terminal, a line for each run elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from borat.lab.config import RunConfig
from borat.lab.metrics import best, judged, unseen, with_unit
from borat.lab.sweeps.progress import JobProgress, SweepProgress, Watch

NAMED_BY_METHOD = ("optimizer", "bundle_size", "schedule")


@contextmanager
def watching(console: Console) -> Iterator[Watch]:
    """Show the progress of training runs."""
    if console.is_terminal:
        live = Live(console=console, auto_refresh=False, transient=True)

        def show(progress: SweepProgress) -> None:
            live.start()
            live.update(live_table(progress), refresh=True)

        try:
            yield show
        finally:
            live.stop()
        return
    told: set[Path] = set()

    def tell(progress: SweepProgress) -> None:
        for point in progress.points:
            if point.ended_now and point.job.folder not in told:
                told.add(point.job.folder)
                show = varying([other.config for other in progress.points])
                line = f"{describe(point.config, show)}: {ending(point)} ({progress})"
                console.print(line, highlight=False, soft_wrap=True)

    yield tell


def live_table(progress: SweepProgress) -> Table:
    """A row for each method, with those of its runs that are under way."""
    show = varying([point.config for point in progress.points])
    table = Table(caption=str(progress), caption_justify="left", expand=True)
    for name, ratio in (("method", None), ("epochs", 1), ("done", None), ("best", None), ("now", 2)):
        table.add_column(name, no_wrap=name != "now", ratio=ratio)
    methods: dict[str, list[JobProgress]] = {}
    for point in progress.points:
        methods.setdefault(point.config.method, []).append(point)
    for method, points in methods.items():
        standings = [standing for point in points if (standing := judged(point.measured, "validation"))]
        leader = best(standings, lambda standing: standing[1], standings[0][0]) if standings else None
        running = [point for point in points if point.status == "running"]
        table.add_row(
            method,
            ProgressBar(total=sum(point.job.size for point in points), completed=sum(point.done for point in points)),
            f"{sum(point.outcome is not None for point in points)}/{len(points)}",
            with_unit(*leader) if leader else "",
            "\n".join(f"{choices(point.config, show)}: {_position(point)}" for point in running),
        )
    return table


def varying(configs: Sequence[RunConfig]) -> list[str]:
    """The keys that have several values, besides those that are told by the method's name."""
    keys = [key for key in RunConfig.model_fields if key not in NAMED_BY_METHOD]
    return [key for key in keys if len({getattr(config, key) for config in configs}) > 1]


def describe(config: RunConfig, show: Sequence[str]) -> str:
    """
    >>> describe(RunConfig(optimizer="sgd", lr=1.0), ["lr", "radius"])
    'SGD, lr 1, radius none'
    """
    return f"{config.method}, {choices(config, show)}" if show else config.method


def choices(config: RunConfig, show: Sequence[str]) -> str:
    return ", ".join(f"{key} {shown(getattr(config, key))}" for key in show)


def shown(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def ending(point: JobProgress) -> str:
    """Return the end of a run in a few words."""
    if point.outcome is None:
        return "not ended"
    if point.outcome.error:
        return f"{point.outcome.status}: {last_line(point.outcome.error)}"
    result = unseen(point.outcome.result)
    shown = [name for name in result if "accuracy" in name] or list(result)
    values = [f", {name.replace('_', ' ')} {with_unit(name, result[name])}" for name in shown]
    return f"{point.outcome.status}{''.join(values)}"


def last_line(error: str) -> str:
    """
    >>> last_line("Traceback:\\n  ...\\nValueError: no data\\n")
    'ValueError: no data'
    """
    return error.strip().splitlines()[-1]


def _position(point: JobProgress) -> str:
    epoch = f"epoch {min(point.done + 1, point.job.size)} of {point.job.size}"
    standing = judged(point.measured, "validation")
    return f"{epoch}, {with_unit(*standing)}" if standing else epoch
