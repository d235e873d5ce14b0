"""``borat explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from borat.lab.cli.common import app, console, echo
from borat.lab.files import check_folder, write_text


@app.command()
def explain(
    output: Annotated[Path, typer.Option(dir_okay=False, help="Page to write.")] = Path("explain.html"),
) -> None:
    """Write an interactive page that shows BORAT, ALI-G and FreeBORAT step by step."""
    check_folder(output.parent)
    import torch  # slow to import: after the argument is checked

    from borat.lab.explain.page import render

    torch.set_num_threads(1)  # faster for a few numbers at a time
    with console.status("computing the frames"):
        write_text(output, render())
    echo(f"written to {output}")
