"""``borat demo``: how far can the learning rate be off? Four methods on scikit-learn's digits."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from borat.lab.cli.common import app, console, refusal, say, show_table
from borat.lab.cli.watch import last_line, watching
from borat.lab.config import Execution, RunConfig
from borat.lab.robustness import MARGIN, Trial, Usable, best_accuracy, is_usable, usable
from borat.lab.signals import interrupted_by_sigterm
from borat.lab.sweeps.grid import expand
from borat.lab.sweeps.jobs import Outcome

LEARNING_RATES = (0.01, 0.1, 1.0, 10.0, 100.0)
RADII = (8.0, 16.0, 32.0)
TASKS: Mapping[str, Mapping[str, Any]] = {
    "cross-entropy": {"loss": "ce"},
    "hinge loss": {"loss": "hinge"},
    "50 % wrong labels": {"label_noise": 0.5},
}
COMPARED: Sequence[Mapping[str, Any]] = (
    {"optimizer": "sgd"},
    {"optimizer": "alig"},
    {"optimizer": "borat", "bundle_size": 3},
    {"optimizer": "borat", "bundle_size": 5},
)
FREE: Mapping[str, Any] = {"optimizer": "free-borat", "bundle_size": 3}
"""Beside them, one that has no learning rate to choose."""
BASE: Mapping[str, Any] = {"data": "digits", "model": "mlp-bn-128-128", "momentum": 0.9, "batch_size": 64}


@app.command()
def demo(
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 10,
    out: Annotated[Path, typer.Option(help="Where the runs and the page are kept.")] = Path("runs/demo"),
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one for each core without it.")] = None,
) -> None:
    """Train on scikit-learn's digits with learning rates over four orders of magnitude, and show what works."""
    from borat.lab.report import write_report
    from borat.lab.sweeps.engines import make_engine
    from borat.lab.sweeps.sweep import run_configs

    start = time.perf_counter()
    by_task = configs(epochs)
    every = [config for configs in by_task.values() for config in configs]
    say(
        f"{len(every)} small networks: {len(COMPARED)} methods at {len(LEARNING_RATES)} learning rates "
        f"and {len(RADII)} radii, and one that needs no learning rate, for {len(by_task)} tasks"
    )
    try:
        with interrupted_by_sigterm(), watching(console) as watch:
            outcomes = run_configs(
                every,
                out,
                engine=make_engine(workers=workers),
                execution=Execution(accelerator="cpu", tensorboard=False),
                watch=watch,
            )
    except (ValueError, OSError) as error:
        raise refusal(error) from error
    except KeyboardInterrupt:
        say(f"stopped; what is done is in {out}, and the same command continues")
        raise typer.Exit(130) from None
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    if failed:
        reason = last_line(failed[0].error)
        say(f"{len(failed)} of {len(every)} runs failed: {reason}")
        say(f"tracebacks are in {out / 'logs'}; once the cause is gone, the same command goes on")
        raise typer.Exit(1)
    of = dict(zip(every, outcomes, strict=True))
    found = {task: trials([of[config] for config in configs]) for task, configs in by_task.items()}
    verdict = verdicts(found)
    for task, of_task in found.items():
        show_table(_table(task, of_task, verdict[task]))
    say(_verdict(verdict))
    say(_verdict_without_lr(found))
    page = out / "report.html"
    write_report(out, page, title="How far can the learning rate be off? scikit-learn's digits")
    say(f"{time.perf_counter() - start:.0f} s; the whole picture is in {page}")


def _table(task: str, found: Sequence[Trial], verdict: Sequence[Usable]) -> Table:
    table = Table(title=f"Test accuracy (%), {task}", title_justify="left", collapse_padding=True)
    table.add_column("method", no_wrap=True)
    for lr in LEARNING_RATES:
        table.add_column(f"lr = {lr:g}", justify="right")
    table.add_column("no lr", justify="right")
    table.add_column("usable", justify="right", no_wrap=True)
    best = best_accuracy(trial.accuracy for trial in found)
    for row in verdict:
        accuracies = [_accuracy(value, best) for value in best_by_rate(found, row.method)]
        if row.method == _free().method:
            accuracies = ["-"] * len(LEARNING_RATES) + [_accuracy(_free_accuracy(found), best)]
        empty = ["-"] * (len(LEARNING_RATES) + 1 - len(accuracies))
        table.add_row(row.method, *accuracies, *empty, f"{row.cells}/{row.total}")
    return table


def _accuracy(value: float, best: float) -> str:
    if math.isnan(value):
        return "[red]diverged[/]"
    colour = "green" if is_usable(value, best) else "yellow" if is_usable(value, best, 0.2) else "red"
    return f"[{colour}]{100 * value:.1f}[/]"


def _verdict(tasks: Mapping[str, Sequence[Usable]]) -> str:
    """One line over all tasks."""
    methods: dict[str, list[str]] = {}
    for rows in tasks.values():
        for row in (row for row in rows if row.method != _free().method):
            methods.setdefault(row.method, []).append(f"{row.decades:.2g}" if row.lrs else "none")
    found = ", ".join(f"{method} {' / '.join(decades)}" for method, decades in methods.items())
    return (
        f"Usable decades of learning rate (accuracy within {100 * MARGIN:g} points of the best), "
        f"{' / '.join(tasks)}: {found}."
    )


def _verdict_without_lr(found: Mapping[str, Sequence[Trial]]) -> str:
    accuracies = []
    for of_task in found.values():
        best = best_accuracy(trial.accuracy for trial in of_task)
        accuracies.append(f"{100 * _free_accuracy(of_task):.1f} % (best of all settings {100 * best:.1f} %)")
    return f"{_free().method} needs no learning rate and no radius, {' / '.join(found)}: {' / '.join(accuracies)}."


def _free() -> RunConfig:
    return RunConfig(**{**BASE, **FREE})


def _free_accuracy(found: Sequence[Trial]) -> float:
    return next(trial.accuracy for trial in found if trial.method == _free().method)


def configs(epochs: int) -> dict[str, list[RunConfig]]:
    """The runs of each task: all methods at all learning rates and radii, and FreeBORAT as it comes."""
    grid = {"lr": LEARNING_RATES, "radius": RADII}
    bases = {name: {**BASE, **task, "epochs": epochs} for name, task in TASKS.items()}
    return {name: [*expand(base, grid, COMPARED), RunConfig(**{**base, **FREE})] for name, base in bases.items()}


def trials(outcomes: Sequence[Outcome]) -> list[Trial]:
    """Return the test accuracy of each run, or NaN for a run without one."""
    found = []
    for outcome in outcomes:
        config = outcome.config
        accuracy = outcome.result.get("test_accuracy", float("nan")) if outcome.status == "finished" else float("nan")
        found.append(Trial(config.method, config.lr, config.radius, accuracy))
    return found


def best_by_rate(found: Sequence[Trial], method: str) -> list[float]:
    """The accuracy at each learning rate, with the radius that suits it best; NaN where all diverged."""
    rows = [[t.accuracy for t in found if (t.method, t.lr) == (method, lr)] for lr in LEARNING_RATES]
    return [max((a for a in row if a == a), default=float("nan")) for row in rows]


def verdicts(found: Mapping[str, Sequence[Trial]]) -> dict[str, list[Usable]]:
    """Return the settings that work for each method, by task."""
    return {task: usable(of_task) for task, of_task in found.items()}
