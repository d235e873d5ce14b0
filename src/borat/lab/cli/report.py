"""``borat report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from borat.lab.cli.common import app, console, refusal, say
from borat.lab.files import check_folder


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the runs are, at any depth.")],
    output: Annotated[
        Path | None, typer.Option(help="The page to write [DIR/report.html].", show_default=False)
    ] = None,
    static: Annotated[Path | None, typer.Option(help="Also write figures for a paper, PNG and PDF, here.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write every run to this CSV file.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Also write the means over seeds to this LaTeX file.")] = None,
    title: Annotated[str | None, typer.Option(help="Of the page.")] = None,
) -> None:
    """Show runs on a page that needs no network: heatmaps, curves, kinds of steps, a table."""
    page = output or folder / "report.html"
    try:
        check_folder(folder)  # said before the large libraries are there
        if next(folder.rglob("*.json"), None) is None:
            raise ValueError(f"no runs in {folder}: train some with `borat train` or `borat sweep`")
        from borat.lab.report import write_report

        summary = write_report(folder, page, title=title, static=static, csv=csv, latex=latex)
    except (ValueError, OSError) as error:
        raise refusal(error) from error
    for note in summary.notes:
        console.print(f"warning: {note}", style="yellow", markup=False, highlight=False)
    if static is not None:
        say(f"{len(summary.figures)} figures in {static}")
    for path in filter(None, (csv, latex)):
        say(f"table in {path}")
    parts = ", ".join(f"{count} {status}" for status, count in summary.counts.items() if count)
    say(f"{summary.runs} runs{f' ({parts})' if parts else ''}: {page}")
