"""The command line of the lab: one module for each command."""

from __future__ import annotations

from typing import Annotated

import typer

import borat
from borat.lab.cli import bench, demo, explain, report, reproduce, sweep, train  # noqa: F401 - each adds its command
from borat.lab.cli.common import app, echo

__all__ = ["app"]


def _print_version(is_given: bool) -> None:
    if is_given:
        echo(f"borat {borat.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """BORAT: train neural networks without tuning learning rates."""
