"""Common parts of the commands: the application, its console, progress bars, and flags made from the configuration."""

from __future__ import annotations

import errno
import inspect
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from typer.core import TyperGroup

from borat.lab.config import RunConfig
from borat.lab.strict import explain_flag

DEFAULTS = {"lr": "what is advised for the optimizer"}
"""Of flags whose default depends on others."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk, an exceeded quota or a file that is too large."""

UNLIMITED = 10_000
"""Columns of a file."""

console = Console()
notes = Console(stderr=True)
"""For what is no result, and should not be in a file of results."""


class Commands(TyperGroup):
    """The commands: all print warnings and log records as lines, and quote the value of a flag that is wrong."""

    def invoke(self, context: Any) -> Any:
        with _warnings_as_notes(), _news_as_notes():
            try:
                return super().invoke(context)
            except typer.BadParameter as error:
                if isinstance(error.__cause__, ValidationError):
                    error.message = explain_flag(error.__cause__)
                raise


app = typer.Typer(
    cls=Commands,
    help="BORAT: train neural networks without tuning learning rates.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@contextmanager
def _warnings_as_notes() -> Iterator[None]:
    def show(message: Warning | str, *place: Any, **more: Any) -> None:
        notes.print(f"warning: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def _news_as_notes() -> Iterator[None]:
    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            notes.print(record.getMessage(), markup=False, highlight=False, soft_wrap=True)

    logger, handler = logging.getLogger("borat.lab"), Notes()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def refusal(error: Exception) -> Exception:
    """Return the exception that ends a command: a usage error or, if the disk is full, an exit after a line."""
    if not isinstance(error, OSError) or error.errno not in FULL:
        return typer.BadParameter(str(error))
    where = f" for {error.filename}" if error.filename else ""
    reason = "no space is left" if error.errno == errno.ENOSPC else os.strerror(error.errno).lower()
    notes.print(f"{reason}{where}: make room, and run the same command again", highlight=False, soft_wrap=True)
    return typer.Exit(1)


def show_table(table: Table) -> None:
    """As wide as the terminal or, where the output is a file, as wide as the table is."""
    (console if console.is_terminal else Console(file=console.file, width=UNLIMITED)).print(table)


def fits(table: Table) -> bool:
    """True if the terminal is wide enough for a table without broken words."""
    options = console.options.update(max_width=UNLIMITED)
    return not console.is_terminal or console.measure(table, options=options).minimum <= console.width


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows the done and the total parts of some work. Nothing is shown before its first call."""
    columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(description)

    def show(done: int, total: int) -> None:
        bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        bar.stop()


def say(text: str) -> None:
    """A line as it is: names of folders may look like markup."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def parse_changes(texts: Sequence[str] | None) -> dict[str, list[Any]]:
    """The values of each key, from KEY=VALUE or KEY=VALUE,VALUE."""
    from borat.lab.files import pick
    from borat.lab.sweeps.grid import parse_values

    changes: dict[str, list[Any]] = {}
    for text in texts or ():
        key, sign, value = text.partition("=")
        if not sign:
            raise ValueError(f"--set takes KEY=VALUE, got {text!r}")
        key = pick("key", key.strip().replace("-", "_"), RunConfig.model_fields)
        changes[key] = parse_values(key, value)
    return changes


def with_flags_of(command: Callable[..., None], *, lists: bool = False) -> Callable[..., None]:
    """Give a command one flag for each key of the configuration; its text, where it may hold a list of values."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    flags = [
        inspect.Parameter(
            key,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                (str if lists else field.annotation) | None,  # type: ignore[operator]
                typer.Option(help=f"default: {DEFAULTS.get(key, field.default)}", show_default=False),
            ],
        )
        for key, field in RunConfig.model_fields.items()
    ]
    command.__signature__ = signature.replace(parameters=[*own, *flags])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in (*own, *flags)}
    return command
