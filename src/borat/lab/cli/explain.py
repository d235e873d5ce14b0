"""``borat explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from borat.lab.cli.common import app, console, echo


@app.command()
def explain(
    output: Annotated[Path, typer.Option(dir_okay=False, help="Page to write.")] = Path("explain.html"),
) -> None:
    """Write an interactive page that shows how the method works."""
    import torch

    from borat.lab.explain.page import write_page

    torch.set_num_threads(1)  # faster for a few numbers at a time
    with console.status("computing the frames"):
        write_page(output)
    echo(f"written to {output}")
