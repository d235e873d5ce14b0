"""``borat report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from borat.lab.cli.common import app, echo, warn
from borat.lab.files import check_folder


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with runs, at any depth.")],
    output: Annotated[Path | None, typer.Option(help="Page to write. Default: DIR/report.html.")] = None,
    static: Annotated[Path | None, typer.Option(help="Also write figures to this folder, as PNG and PDF.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write all runs to this CSV file.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Also write the means over seeds to this LaTeX file.")] = None,
) -> None:
    """Write a self-contained HTML page about runs: heatmaps, curves, kinds of steps, a table."""
    page = output or folder / "report.html"
    check_folder(folder)
    if next(folder.rglob("*.json"), None) is None:  # fail before slow imports
        raise ValueError(f"no runs in {folder}: train some with `borat train` or `borat sweep`")
    from borat.lab.report import write_report

    summary = write_report(folder, page, static=static, csv=csv, latex=latex)
    for note in summary.notes:
        warn(note)
    if static is not None:
        echo(f"{len(summary.figures)} figures in {static}")
    for path in filter(None, (csv, latex)):
        echo(f"table in {path}")
    echo(f"{summary}: {page}")
