"""``borat bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from borat.lab.cli.common import app, echo, progress_bar, show_table
from borat.lab.files import pick
from borat.lab.timing.shapes import MODELS


@app.command()
def bench(
    models: Annotated[
        list[str] | None, typer.Argument(help="Some of WRN-40-4, ResNet-18, Bi-LSTM, MLP. Default: all.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of measurements of each optimizer.")] = 15,
    output: Annotated[Path | None, typer.Option(help="Also write the tables to this Markdown file.")] = None,
) -> None:
    """Time the optimizers next to those of PyTorch and Optax, and the dual solver next to quadprog."""
    names = [pick("model", name, MODELS) for name in models or MODELS]
    from borat.lab.timing import optimizers as measure  # slow to import: after the arguments are checked
    from borat.lab.timing import tables
    from borat.lab.timing.jax_steps import measure_jax
    from borat.lab.timing.launches import measure_kernels, measure_launches

    costs: list[measure.OptimizerCost] = []
    for name in names:
        with progress_bar(name) as progress:
            costs += measure.measure_optimizers(name, rounds, progress)
    in_jax: list[measure.OptimizerCost] = []
    for name in names:
        with progress_bar(f"{name} in JAX") as progress:
            in_jax += measure_jax(name, rounds, progress)
    shown = tables.tables(costs, measure.measure_dual(), measure_launches(), measure_kernels(), in_jax)
    for table in shown:
        show_table(table.as_rich())
    echo(measure.machine())
    if output is not None:
        tables.write(output, shown, command=" ".join(["borat bench", *(models or []), f"--rounds {rounds}"]))
        echo(f"written to {output}")
