"""``borat reproduce``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.padding import Padding

from borat.lab.cli.common import app, console, parse_changes, progress_bar, refusal, say, show_table
from borat.lab.cli.options import Address, Changes, CpusPerRun, DataDir, EngineName, GpusPerRun, Threads, Workers
from borat.lab.cli.watch import watching
from borat.lab.files import write_text
from borat.lab.signals import interrupted_by_sigterm
from borat.lab.sweeps.engines import make_engine

if TYPE_CHECKING:
    from borat.lab.config import RunConfig
    from borat.lab.reproduce.spec import ResultPage, Spec, Study, StudyResult
    from borat.lab.sweeps.engines.base import Engine


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment, see --list, or a TOML file of your own.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Show the experiments.")] = False,
    scale: Annotated[str, typer.Option(help="full: the paper's protocol; mini: minutes on two CPU cores.")] = "mini",
    methods: Annotated[str, typer.Option(help="Only these rows, separated by commas.")] = "",
    columns: Annotated[str, typer.Option(help="Only these columns, separated by commas.")] = "",
    changes: Changes = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Where runs are kept; runs/NAME without it.")] = None,
    output: Annotated[Path | None, typer.Option(help="Also write the result to this Markdown file.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw a scoreboard to this PNG or PDF file.")] = None,
    workers: Workers = None,
    threads: Threads = None,
    engine: EngineName = "local",
    address: Address = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    commands: Annotated[
        bool, typer.Option("--commands", help="Run nothing: print a `borat train` for each run that is missing.")
    ] = False,
) -> None:
    """Run a table or figure of the paper, and show ours beside it. The same command goes on after an interruption."""
    if show_list:
        _show_list()
        return
    try:
        from borat.lab.reproduce.reading import load_spec

        if name is None:
            raise ValueError("name an experiment; --list shows them")
        spec = load_spec(name)
        folder = out or Path("runs") / spec.name
        changed = {k: v[0] if len(v) == 1 else v for k, v in parse_changes(changes).items()}
        study = spec.at(scale, methods=_names(methods), columns=_names(columns), changes=changed)
        if commands:
            _print_commands(study, folder, data_dir)
            return
        if picture is not None:
            _check_picture(spec, picture)
        where = make_engine(
            engine,
            workers=workers,
            threads=threads,
            address=address,
            cpus_per_run=cpus_per_run,
            gpus_per_run=gpus_per_run,
        )
        result = _run(study, folder, data_dir, where)
        link = Path(os.path.relpath(picture, output.parent)).as_posix() if picture and output else ""
        command = _command(name, scale, methods, columns, changed, data_dir, output, picture)
        page = result.page(command, link)
        _show(page, folder, output)
        if picture is not None:
            _draw(result, picture)
        _tell_failures(page, folder)
    except (ValueError, OSError) as error:
        raise refusal(error) from error


def _check_picture(spec: Spec, picture: Path) -> None:
    """Raise before hours of training."""
    if not spec.draws_picture:
        raise ValueError(f"--picture is for a scoreboard, which {spec.name} is not")
    if picture.suffix not in (".png", ".pdf"):
        raise ValueError(f"--picture must end with .png or .pdf, got {picture}")


def _draw(result: StudyResult, picture: Path) -> None:
    from borat.lab.figures import save

    picture.parent.mkdir(parents=True, exist_ok=True)
    save(result.study.spec.draw(result), picture.parent, picture.stem, [picture.suffix[1:]])
    say(f"written to {picture}")


def _run(study: Study, folder: Path, data_dir: Path | None, engine: Engine) -> StudyResult:
    try:
        with interrupted_by_sigterm(), watching(console) as watch, progress_bar("measuring") as progress:
            result: StudyResult = study.run(folder, data_dir=data_dir, engine=engine, watch=watch, progress=progress)
            return result
    except KeyboardInterrupt:
        say(f"stopped; runs that are done stay in {folder}, and the same command goes on")
        raise typer.Exit(130) from None


def _show_list() -> None:
    from borat.lab.reproduce.reading import load_spec, spec_names

    for name in spec_names():
        spec = load_spec(name)
        sizes = "; ".join(f"{scale}: {spec.size(spec.at(scale))}" for scale in ("full", "mini"))
        console.print(f"[bold]{name}[/]  {escape(spec.source)}", highlight=False)
        for line in (spec.question, sizes):
            console.print(Padding(escape(line), (0, 0, 0, 4)), highlight=False)
    say("`borat reproduce NAME` runs the mini scale, with `--scale full` the paper's.")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _command(
    name: str,
    scale: str,
    methods: str,
    columns: str,
    changes: Mapping[str, Any],
    data_dir: Path | None,
    output: Path | None,
    picture: Path | None,
) -> str:
    """Return the command as it can be repeated elsewhere, without the folder of the data."""
    from borat.lab.reproduce.page import changes_text

    words = ["borat", "reproduce", Path(name).name, "--scale", scale]
    for flag, text in (("--methods", methods), ("--columns", columns)):
        words += [flag, text] if text else []
    for key, value in changes_text(changes).items():
        words += ["--set", f"{key}={value}"]
    words += ["--data-dir", "DATA"] if data_dir else []
    for flag, path in (("--output", output), ("--picture", picture)):
        words += [flag, path.name] if path else []
    return shlex.join(words)


def _print_commands(study: Study, folder: Path, data_dir: Path | None) -> None:
    """Print a `borat train` for each missing run: for a cluster's own scheduler, or for several devices."""
    missing = study.missing(folder)
    for config in missing:
        words = ["borat", "train", *_flags(config), "--out", str(folder)]
        words += ["--data-dir", str(data_dir)] if data_dir else []
        print(shlex.join(words))
    if not missing:
        say("nothing is missing: leave out --commands to see the table")


def _flags(config: RunConfig) -> list[str]:
    """Return the flags of ``borat train`` that are not at their default, which depends on the optimizer."""
    words = ["--optimizer", config.optimizer]
    default = type(config)(optimizer=config.optimizer).as_dict()
    for key, value in config.as_dict().items():
        flag = key.replace("_", "-")
        if value == default[key] or value is None:
            continue
        words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", f"{value}"]
    return words


def _show(page: ResultPage, folder: Path, output: Path | None) -> None:
    for table in page.tables:
        show_table(table.as_rich())
    written = [page.experiment.write(folder)]
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_text(output, page.markdown)
        written.append(output)
    for path in written:
        say(f"written to {path}")


def _tell_failures(page: ResultPage, folder: Path) -> None:
    for failure in page.failures:
        console.print(f"[red]failed[/] {escape(failure)}", highlight=False, soft_wrap=True)
    if page.failures:
        say(f"tracebacks are in {folder / 'logs'}; once the cause is gone, the same command goes on")
        raise typer.Exit(1)
