"""``borat bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from borat.lab.cli.common import app, echo, progress_bar, show_table
from borat.lab.files import check_folder, pick
from borat.lab.timing.shapes import MODELS


@app.command()
def bench(
    models: Annotated[
        list[str] | None, typer.Argument(help="Models to time: WRN-40-4, ResNet-18, Bi-LSTM, MLP. Default: all.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of measurements of each optimizer.")] = 15,
    output: Annotated[Path | None, typer.Option(help="Also write the tables to this Markdown file.")] = None,
) -> None:
    """Time the optimizers next to those of PyTorch and Optax, and the dual solver next to quadprog."""
    names = [pick("model", name, MODELS) for name in models or MODELS]
    if output is not None:
        check_folder(output.parent)
    from borat.lab.timing import optimizers, tables  # slow to import: after the arguments are checked

    shown = tables.measured_tables(names, rounds, progress_bar)
    for table in shown:
        show_table(table.as_rich())
    echo(optimizers.machine())
    if output is not None:
        tables.write(output, shown, command=" ".join(["borat bench", *(models or []), f"--rounds {rounds}"]))
        echo(f"written to {output}")
