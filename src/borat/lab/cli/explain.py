"""``borat explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from borat.lab.cli.common import app, console, progress_bar, refusal, say


@app.command()
def explain(
    output: Annotated[
        Path | None, typer.Option(dir_okay=False, help="The page to write; explain.html without it.")
    ] = None,
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
        typer.Option(exists=True, file_okay=False, help="For --theory: LIBSVM's mushrooms and w8a, to draw them too."),
    ] = None,
) -> None:
    """Write an interactive page that shows how the method works."""
    import torch

    if data_dir is not None and theory is None:
        raise typer.BadParameter("is only used with --theory", param_hint="--data-dir")
    torch.set_num_threads(1)  # for a few numbers at a time, more threads only wait for each other
    try:
        if output is not None or (static is None and theory is None):
            _write_page(output or Path("explain.html"))
        if static is not None:
            _draw_illustrations(static)
        if theory is not None:
            _draw_rates(theory, data_dir)
    except (ValueError, OSError) as error:
        raise refusal(error) from error


def _write_page(path: Path) -> None:
    from borat.lab.explain.page import write_page

    with console.status("computing the frames"):
        write_page(path)
    _tell([path])


def _draw_illustrations(folder: Path) -> None:
    from borat.lab.explain import pictures

    folder.mkdir(parents=True, exist_ok=True)
    _tell(pictures.draw(folder))


def _draw_rates(folder: Path, data_dir: Path | None) -> None:
    from borat.lab.theory import figures

    folder.mkdir(parents=True, exist_ok=True)
    with progress_bar("measuring") as progress:
        _tell(figures.draw(folder, data_dir, progress))


def _tell(paths: list[Path]) -> None:
    for path in paths:
        say(f"written to {path}")
