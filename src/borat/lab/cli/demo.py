"""``borat demo``: how far can the learning rate be off? Five methods on scikit-learn's digits."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from borat.lab.cli.common import app, describe_failures, echo, exit_with_failures, show_table, watching
from borat.lab.config import Execution, RunConfig
from borat.lab.robustness import Trial, best_accuracy, describe_ranges, is_usable, usable
from borat.lab.signals import interrupted_by_sigterm
from borat.lab.sweeps.engines import make_engine
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
"""Has neither a learning rate nor a radius."""
BASE: Mapping[str, Any] = {"data": "digits", "model": "mlp-bn-128-128", "momentum": 0.9, "batch_size": 64}


@app.command()
def demo(
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 10,
    out: Annotated[Path, typer.Option(help="Folder of the runs and the page.")] = Path("runs/demo"),
) -> None:
    """Train on scikit-learn's digits at learning rates over four orders of magnitude, and show which of them work."""
    from borat.lab.report import write_report
    from borat.lab.sweeps.sweep import run_configs

    start = time.perf_counter()
    tasks = configs(epochs)
    every = [config for runs in tasks.values() for config in runs]
    echo(
        f"{len(every)} small networks for {len(tasks)} tasks: {len(COMPARED)} methods at {len(LEARNING_RATES)} "
        f"learning rates and {len(RADII)} radii, and {RunConfig(**FREE).method}, which needs neither"
    )
    execution = Execution(accelerator="cpu", tensorboard=False)
    with interrupted_by_sigterm(), watching() as watch:
        outcomes = run_configs(every, out, engine=make_engine(), execution=execution, watch=watch)
    exit_with_failures(describe_failures(outcomes), out)
    found = dict(zip(every, outcomes, strict=True))
    for task, runs in tasks.items():
        trials = [trial(found[config]) for config in runs]
        show_table(result_table(task, trials))
        echo(describe_ranges(usable(trials)))
    page = out / "report.html"
    write_report(out, page, title="How far can the learning rate be off? scikit-learn's digits")
    echo(f"{time.perf_counter() - start:.0f} s; all runs are shown in {page}")


def configs(epochs: int) -> dict[str, list[RunConfig]]:
    """Return the runs of each task: all methods at all learning rates and radii, and FreeBORAT at its defaults."""
    runs: dict[str, list[RunConfig]] = {}
    for name, task in TASKS.items():
        base = {**BASE, **task, "epochs": epochs}
        for method in COMPARED:
            runs.setdefault(name, []).extend(expand({**base, **method, "lr": LEARNING_RATES, "radius": RADII}))
        runs[name].append(RunConfig(**{**base, **FREE}))
    return runs


def trial(outcome: Outcome) -> Trial:
    """Return the trial of a run; its accuracy is NaN if the run diverged."""
    accuracy = outcome.result.get("test_accuracy", math.nan) if outcome.status == "finished" else math.nan
    return Trial(outcome.config.method, outcome.config.lr, outcome.config.radius, accuracy)


def result_table(task: str, trials: Sequence[Trial]) -> Table:
    """Return the accuracy of each method at each learning rate, with the best radius."""
    table = Table(title=f"Test accuracy (%), {task}", title_justify="left", collapse_padding=True)
    table.add_column("method", no_wrap=True)
    columns = [*(f"lr = {lr:g}" for lr in LEARNING_RATES), "no lr"]
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("usable", justify="right", no_wrap=True)
    best = best_accuracy(trial.accuracy for trial in trials)
    for row in usable(trials):
        cells: dict[str, list[float]] = {column: [] for column in columns}
        for trial in (trial for trial in trials if trial.method == row.method):
            cells["no lr" if trial.radius is None else f"lr = {trial.lr:g}"].append(trial.accuracy)
        texts = [accuracy_text(best_accuracy(cell), best) if cell else "-" for cell in cells.values()]
        table.add_row(row.method, *texts, f"{row.cells}/{row.total}")
    return table


def accuracy_text(value: float, best: float) -> str:
    """Return an accuracy in percent, coloured by its distance to the best; infinite if all runs diverged."""
    if math.isinf(value):
        return "[red]diverged[/]"
    colour = "green" if is_usable(value, best) else "yellow" if is_usable(value, best, 0.2) else "red"
    return f"[{colour}]{100 * value:.1f}[/]"
