"""Shared parts of the commands: the application, its output, errors and progress bars, and common flags."""

from __future__ import annotations

import errno
import inspect
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from typer.core import TyperGroup

from borat.lab.config import NAMED_BY_METHOD, Execution, RunConfig
from borat.lab.metrics import unseen, with_unit
from borat.lab.signals import Interrupted
from borat.lab.strict import explain_flag
from borat.lab.sweeps.jobs import Outcome, SweepProgress, Watch

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk, an exceeded quota and a file that is too large."""
UNLIMITED = 10_000
"""Width of a table in a file, in characters."""
SILENT = os.environ.get("LOCAL_RANK", "0") != "0"
"""True in all processes of a training run but the first."""
RUNS = Path("runs")
Out = Annotated[Path, typer.Option(help="Folder for the runs; each has a subfolder named after its configuration.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with the files of the data set, or your own CSV or text file. Default: download."),
]

console = Console(quiet=SILENT)
notes = Console(stderr=True, quiet=SILENT)
"""Console on stderr for warnings, log records and errors."""
USAGE_ERROR: type[Exception] = typer.BadParameter.__base__  # type: ignore[assignment]
"""Base class of typer's errors about flags and arguments, which typer does not export."""


class Commands(TyperGroup):
    """Command group that prints each error, warning and log record as one line on stderr."""

    def main(self, *args: Any, **options: Any) -> NoReturn:
        with _warnings_and_log_as_notes():
            try:
                sys.exit(super().main(*args, **{**options, "standalone_mode": False}))
            except (USAGE_ERROR, ValueError, OSError, ImportError) as error:
                if isinstance(error, ModuleNotFoundError):
                    raise
                message, code = _explain(error)
                if message:  # none for `borat` alone, which has printed its help
                    note(f"error: {message}", style="red")
                sys.exit(code)

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except (KeyboardInterrupt, Interrupted) as interruption:
            echo(str(interruption) or "stopped; rerun the command to continue")
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _explain(error: Exception) -> tuple[str, int]:
    """Return the message and the exit code: 1 for a full disk, 2 for a user error."""
    if isinstance(error.__cause__, ValidationError):
        error.message = explain_flag(error.__cause__)  # type: ignore[attr-defined]
    if isinstance(error, USAGE_ERROR):
        return str(error.format_message()), 2  # type: ignore[attr-defined]
    if isinstance(error, OSError) and error.errno in FULL:
        reason = "no space left" if error.errno == errno.ENOSPC else os.strerror(error.errno).lower()
        where = f" for {error.filename}" if error.filename else ""
        return f"{reason}{where}: free some space and rerun the command", 1
    return str(error), 2


def note(text: str, **options: Any) -> None:
    """Print a line on stderr."""
    notes.print(text, markup=False, highlight=False, soft_wrap=True, **options)


def warn(message: Warning | str, *place: Any, **more: Any) -> None:
    """Print a warning; replaces :func:`warnings.showwarning`."""
    note(f"warning: {message}", style="yellow")


@contextmanager
def _warnings_and_log_as_notes() -> Iterator[None]:
    logger, handler = logging.getLogger("borat.lab"), logging.Handler()
    handler.emit = lambda record: note(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = warn
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def echo(text: str) -> None:
    """Print a line as it is: folder names may contain markup."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def show_table(table: Table) -> None:
    """Print a table, fitted to the terminal, or at full width if the output is a file."""
    (console if console.is_terminal else Console(file=console.file, width=UNLIMITED)).print(table)


def exit_with_failures(failures: Sequence[str], folder: Path) -> None:
    """If there are failures, print them and exit with code 1."""
    for failure in failures:
        console.print(f"[red]failed:[/] {escape(failure)}", highlight=False, soft_wrap=True)
    if failures:
        echo(f"tracebacks are in {folder / 'logs'}; rerun the command to train these runs again")
        raise typer.Exit(1)


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[..., None]]:
    """Yield a function that updates a progress bar: parts done, total and, optionally, a new description."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal, expand=True)
    task = bar.add_task(description)

    def show(done: int, total: int, description: str | None = None) -> None:
        bar.start()
        bar.update(task, completed=done, total=total, description=description)

    try:
        yield show
    finally:
        bar.stop()


@contextmanager
def watching() -> Iterator[Watch]:
    """Yield a function that prints a line for each run that ends and, on a terminal, shows a progress bar."""
    shown: set[str] = set()
    with progress_bar("") as show_bar:

        def watch(progress: SweepProgress) -> None:
            keys = varying([point.job.config for point in progress.points])
            for point in progress.points:
                if point.is_new and point.outcome is not None and point.job.config.digest not in shown:
                    shown.add(point.job.config.digest)
                    echo(f"{describe(point.job.config, keys)}: {describe_end(point.outcome)} ({progress})")
            show_bar(progress.done, progress.size, str(progress))

        yield watch


def varying(configs: Sequence[RunConfig]) -> list[str]:
    """Return the keys whose values differ between configurations, except those in the name of the method."""
    keys = [key for key in RunConfig.model_fields if key not in NAMED_BY_METHOD]
    return [key for key in keys if len({getattr(config, key) for config in configs}) > 1]


def describe(config: RunConfig, keys: Sequence[str]) -> str:
    """Return the method of a configuration and the values of some keys.

    >>> describe(RunConfig(optimizer="sgd", lr=1.0), ["lr", "radius"])
    'SGD, lr 1, radius none'
    """
    return ", ".join([config.method, *(f"{key} {value_text(getattr(config, key))}" for key in keys)])


def value_text(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def describe_end(outcome: Outcome) -> str:
    """Return the status of a run that ended, with its error or its result."""
    if outcome.error:
        return f"{outcome.status}: {outcome.reason}"
    result = unseen(outcome.result)
    names = [name for name in result if "accuracy" in name] or list(result)
    return ", ".join([outcome.status, *(f"{name.replace('_', ' ')} {with_unit(name, result[name])}" for name in names)])


def describe_failures(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the reasons for failed runs, each with a second line that lists its runs."""
    keys = varying([outcome.config for outcome in outcomes])
    failed: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.status == "failed":
            failed.setdefault(outcome.reason, []).append(describe(outcome.config, keys))
    return [f"{reason}\n  {'; '.join(names)}" for reason, names in failed.items()]


def with_flags(*groups: Sequence[inspect.Parameter]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the ``**flags`` of a command by these flags."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        parameters = [*named, *(flag for flags in groups for flag in flags)]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


def _flag(name: str, kind: Any, description: str, metavar: str | None = None) -> inspect.Parameter:
    annotation = Annotated[kind | None, typer.Option(help=description, show_default=False, metavar=metavar)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _help(key: str, field: FieldInfo) -> str:
    default = "recommended for the optimizer" if key == "lr" else str(field.default).lower()
    return f"{field.description}." + ("" if field.default is None else f" Default: {default}.")


CONFIG_FLAGS = [
    _flag(key, str, _help(key, field), f"<{(*get_args(field.annotation), field.annotation)[0].__name__}>")
    for key, field in RunConfig.model_fields.items()
]
"""Their values are strings, which :mod:`borat.lab.sweeps.grid` parses."""
EXECUTION_FLAGS = [_flag(key, field.annotation, _help(key, field)) for key, field in Execution.model_fields.items()]
ENGINE_FLAGS = [
    _flag("engine", str, "local (processes on this machine) or ray (a Ray cluster). Default: local."),
    _flag("workers", int, "Number of processes on this machine. Default: one per core."),
    _flag("address", str, "Address of the Ray cluster; its machines must share --out. Default: start Ray here."),
    _flag("cpus_per_run", float, "CPUs that Ray reserves for a run. Default: 1."),
    _flag("gpus_per_run", float, "GPUs that Ray reserves for a run; two runs share one with 0.5. Default: 0."),
]
"""Arguments of :func:`borat.lab.sweeps.engines.make_engine`."""
