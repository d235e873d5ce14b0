"""``borat explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from borat.lab.cli.common import app, console, echo, progress_bar


@app.command()
def explain(
    output: Annotated[Path | None, typer.Option(dir_okay=False, help="Page to write. Default: explain.html.")] = None,
    static: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Instead, draw the paper's illustrations and FreeBORAT's into this folder."),
    ] = None,
    theory: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Instead, measure the theorems' rates and draw them into this folder."),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="With --theory: also use mushrooms and w8a in this folder."),
    ] = None,
) -> None:
    """Write an interactive page that shows how the method works."""
    if data_dir is not None and theory is None:
        raise ValueError("--data-dir is only used with --theory")
    import torch

    torch.set_num_threads(1)  # faster for a few numbers at a time
    written: list[Path] = []
    if output is not None or (static is None and theory is None):
        from borat.lab.explain.page import write_page

        page = output or Path("explain.html")
        with console.status("computing the frames"):
            write_page(page)
        written.append(page)
    if static is not None:
        from borat.lab.explain import pictures

        written += pictures.draw(static)
    if theory is not None:
        from borat.lab.theory import figures

        with progress_bar("measuring") as progress:
            written += figures.draw(theory, data_dir, progress)
    for path in written:
        echo(f"written to {path}")
