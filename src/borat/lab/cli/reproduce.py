"""``borat reproduce``."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.padding import Padding

from borat.lab.cli.common import (
    app,
    console,
    interrupted_by_sigterm,
    parse_changes,
    progress_bar,
    refusal,
    say,
    show_table,
)
from borat.lab.cli.options import Address, Changes, CpusPerRun, DataDir, EngineName, GpusPerRun, Threads, Workers
from borat.lab.cli.watch import last_line, watching
from borat.lab.files import write_text

if TYPE_CHECKING:
    from borat.lab.config import RunConfig
    from borat.lab.reproduce.page import ResultPage
    from borat.lab.reproduce.run import Result
    from borat.lab.reproduce.spec import Spec, Study
    from borat.lab.sweeps.engines.base import Engine
    from borat.lab.timing.runtime import Runtime


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment, see --list, or a TOML file of your own.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Show the experiments and what they cost.")] = False,
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
        settings = {k: v[0] if len(v) == 1 else v for k, v in parse_changes(changes).items()}
        chosen: dict[str, Any] = {"methods": _names(methods), "columns": _names(columns), "changes": settings}
        if spec.kind == "runtime" and any(chosen.values()):
            raise ValueError(f"{spec.name} measures run time: --methods, --columns and --set do not apply to it")
        study = spec.at(scale, **chosen)
        if commands:
            _print_commands(study, folder, data_dir)
            return
        if picture is not None:
            _check_picture(spec, picture)
        command = _command(name, scale, methods, columns, settings, data_dir, output, picture)
        if study.runtime:
            _show(_time(study, study.runtime, command), folder, output)
            return
        from borat.lab.reproduce.page import report
        from borat.lab.sweeps.engines.base import make_engine

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
        page = report(result, command, link)
        _show(page, folder, output)
        if picture is not None:
            _draw(page, picture)
        _tell_failures(result, folder)
    except (ValueError, OSError) as error:
        raise refusal(error) from error


def _check_picture(spec: Spec, picture: Path) -> None:
    """Before hours of training."""
    if spec.kind != "scoreboard":
        raise ValueError(f"--picture is for a scoreboard, but {spec.name} is a {spec.kind}")
    if picture.suffix not in (".png", ".pdf"):
        raise ValueError(f"--picture must end with .png or .pdf, got {picture}")


def _draw(page: ResultPage, picture: Path) -> None:
    from borat.lab.figures import save
    from borat.lab.reproduce.picture import draw_board

    assert page.board is not None  # as checked before
    picture.parent.mkdir(parents=True, exist_ok=True)
    save(draw_board(page.board, page.experiment.title), picture.parent, picture.stem, [picture.suffix[1:]])
    console.print(f"written to {picture}", highlight=False)


def _run(study: Study, folder: Path, data_dir: Path | None, engine: Engine) -> Result:
    from borat.lab.reproduce.run import reproduce as run_experiment

    try:
        with interrupted_by_sigterm(), watching(console) as watch:
            return run_experiment(study, folder, data_dir=data_dir, engine=engine, watch=watch)
    except KeyboardInterrupt:
        console.print(f"stopped; what is done is in {folder}, and the same command continues", highlight=False)
        raise typer.Exit(130) from None


def _show_list() -> None:
    from borat.lab.reproduce.costs import estimate
    from borat.lab.reproduce.reading import load_spec, spec_names

    for name in spec_names():
        spec = load_spec(name)
        full, mini = estimate(spec.at("full")), estimate(spec.at("mini"))
        passes = f"{full.passes:,} passes over the data, " if full.passes else ""
        hours = f"{full.gpu_hours:,.0f} GPU hours" if full.gpu_hours >= 1 else "less than a GPU hour"
        minutes = f"{max(mini.cpu_minutes, 1):.0f} minutes on 2 cores"
        console.print(f"[bold]{name}[/]  {escape(spec.source)}", highlight=False)
        for line in (spec.question, f"full: {full.runs:,} runs, {passes}{hours}; mini: {mini.runs} runs, {minutes}"):
            console.print(Padding(escape(line), (0, 0, 0, 4)), highlight=False)
    console.print(
        "Costs are estimates: GPU hours on a TITAN Xp, from the paper's run times and the models' operations; minutes "
        "from times measured on one x86-64 core. `borat reproduce NAME` runs the mini scale, with `--scale full` the "
        "paper's.",
        highlight=False,
    )


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
    """The command as it can be repeated elsewhere: where the data are is left to the reader."""
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
    """For a cluster's own scheduler, or to train on several devices; afterwards, the table is made as ever."""
    from borat.lab.reproduce.run import missing_runs

    missing = missing_runs(study, folder)
    for config in missing:
        words = ["borat", "train", *_flags(config), "--out", str(folder)]
        words += ["--data-dir", str(data_dir)] if data_dir else []
        print(shlex.join(words))
    if not missing:
        console.print("nothing is missing: leave out --commands to see the table", highlight=False)


def _flags(config: RunConfig) -> list[str]:
    """What ``borat train`` has to be told; each optimizer has a learning rate of its own by default."""
    words = ["--optimizer", config.optimizer]
    default = type(config)(optimizer=config.optimizer).as_dict()
    for key, value in config.as_dict().items():
        flag = key.replace("_", "-")
        if value == default[key] or value is None:
            continue
        words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", f"{value}"]
    return words


def _time(study: Study, runtime: Runtime, command: str) -> ResultPage:
    from borat.lab.reproduce.page import runtime_report
    from borat.lab.timing.epochs import measure

    start = time.perf_counter()
    with progress_bar("measuring", 0) as (progress, task):
        times = measure(runtime, progress=lambda done, total: progress.update(task, completed=done, total=total))
    return runtime_report(study, runtime, times, time.perf_counter() - start, command)


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


def _tell_failures(result: Result, folder: Path) -> None:
    runs = result.runs
    failed = runs[runs.status == "failed"]
    for run in failed.itertuples():
        text = f"{run.method}, lr {run.lr:g}: {last_line(run.error)}"
        console.print(f"[red]failed[/] {escape(text)}", highlight=False, soft_wrap=True)
    if len(failed):
        say(f"tracebacks are in {folder / 'logs'}; once the cause is gone, the same command goes on")
        raise typer.Exit(1)
