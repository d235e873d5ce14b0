"""The command line of the lab."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

import borat

app = typer.Typer(
    help="BORAT: train neural networks without tuning learning rates.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(f"borat {borat.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """BORAT: train neural networks without tuning learning rates."""


@app.command()
def demo(
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 10,
    picture: Annotated[
        Path | None, typer.Option(help="Try seven learning rates and three seeds; draw them here.")
    ] = None,
) -> None:
    """Train on scikit-learn's digits with a good and with a far too large learning rate."""
    from borat.lab import demo as digits

    if picture is not None and not picture.parent.is_dir():
        raise typer.BadParameter(f"the folder {picture.parent} does not exist", param_hint="--picture")
    start = time.perf_counter()
    rates, seeds = (digits.MANY_LEARNING_RATES, 3) if picture else (digits.LEARNING_RATES, 1)
    results: list[digits.Result] = []
    with _progress("training", len(digits.METHODS) * len(rates) * seeds) as (progress, task):
        for result in digits.run(epochs, rates, seeds):
            results.append(result)
            progress.update(task, advance=1, description=f"{result.method}, lr = {result.lr:g}")
    console.print(f"Test accuracy on scikit-learn's digits after {epochs} epochs", highlight=False)
    table = Table()
    table.add_column("method")
    for lr in rates:
        table.add_column(f"lr = {lr:g}", justify="right")
    best = max(r.test_accuracy for r in results)
    for method in digits.METHODS:
        row = [[r.test_accuracy for r in results if (r.method, r.lr) == (method, lr)] for lr in rates]
        table.add_row(method, *(_accuracy(sum(values) / seeds, best) for values in row))
    console.print(table)
    ratio = max(rates) / min(rates)
    console.print(f"All methods saw the same batches; the largest lr is {ratio:g} times the smallest.", highlight=False)
    console.print(f"{time.perf_counter() - start:.0f} s", highlight=False)
    if picture is not None:
        digits.draw(results, picture)
        console.print(f"drawn in {picture}", highlight=False)


@contextmanager
def _progress(description: str, total: int) -> Iterator[tuple[Progress, TaskID]]:
    columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress, progress.add_task(description, total=total)


def _accuracy(value: float, best: float) -> str:
    colour = "green" if value >= best - 0.02 else "yellow" if value >= best - 0.2 else "red"
    return f"[{colour}]{100 * value:.1f} %[/]"


@app.command()
def bench(
    models: Annotated[list[str] | None, typer.Argument(help="Some of WRN-40-4, ResNet-18, Bi-LSTM, MLP [all].")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each optimizer.")] = 15,
    output: Annotated[Path | None, typer.Option(help="Also write the tables to this Markdown file.")] = None,
) -> None:
    """Measure the optimizer call beside PyTorch's SGD and Adam, and the dual beside quadprog."""
    from borat.lab import bench as measure
    from borat.lab import bench_report

    unknown = [name for name in models or [] if name not in measure.MODELS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(measure.MODELS)}", param_hint="MODELS")
    costs: list[measure.OptimizerCost] = []
    names = models or list(measure.MODELS)
    with _progress("measuring", len(names) * (rounds + measure.WARM_UP)) as (progress, task):
        for name in names:
            progress.update(task, description=name)
            costs += measure.measure_optimizers(name, rounds, lambda: progress.advance(task))
    report = bench_report.tables(costs, measure.measure_dual())
    for table in report:
        console.print(table.as_rich())
    console.print(measure.machine(), highlight=False)
    if output is not None:
        bench_report.write(output, report, command=" ".join(["borat bench", *(models or []), f"--rounds {rounds}"]))
        console.print(f"written to {output}", highlight=False)
