"""``borat demo``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from borat.lab.cli.common import app, console, progress_bar


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
    with progress_bar("training", len(digits.METHODS) * len(rates) * seeds) as (progress, task):
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


def _accuracy(value: float, best: float) -> str:
    colour = "green" if value >= best - 0.02 else "yellow" if value >= best - 0.2 else "red"
    return f"[{colour}]{100 * value:.1f} %[/]"
