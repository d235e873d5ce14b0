"""``borat reproduce``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.padding import Padding

from borat.lab.cli import common
from borat.lab.cli.common import app, console, echo, watching
from borat.lab.config import RunConfig
from borat.lab.files import pick, write_text
from borat.lab.signals import interrupted_by_sigterm
from borat.lab.sweeps.engines import make_engine
from borat.lab.sweeps.grid import parse_values

if TYPE_CHECKING:
    from borat.lab.reproduce.spec import Study, StudyResult


@app.command()
@common.with_flags(common.ENGINE_FLAGS)
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="Name of an experiment (see --list), or your own TOML file.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the experiments and exit.")] = False,
    scale: Annotated[
        str, typer.Option(help="full (the paper's protocol) or mini (small enough for two CPU cores).")
    ] = "mini",
    methods: Annotated[str, typer.Option(help="Only these methods, separated by commas.")] = "",
    columns: Annotated[str, typer.Option(help="Only these columns, separated by commas.")] = "",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE: change a key of all configurations, such as precision=bf16-mixed."),
    ] = None,
    data_dir: common.DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs. Default: runs/NAME.")] = None,
    output: Annotated[Path | None, typer.Option(help="Also write the result to this Markdown file.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw the result to this PNG or PDF file.")] = None,
    commands: Annotated[
        bool, typer.Option("--commands", help="Print a `borat train` command for each missing run, and exit.")
    ] = False,
    **flags: Any,
) -> None:
    """Reproduce a table or figure of the paper. The same command continues after an interruption."""
    if show_list:
        _show_list()
        return
    if name is None:
        raise ValueError("no experiment given: --list shows their names")
    from borat.lab.reproduce.reading import load_spec
    from borat.lab.reproduce.spec import Spec

    spec = load_spec(name)
    folder = out or common.RUNS / spec.name
    changed = _parse_changes(changes or ())
    study = spec.at(scale, methods=_names(methods), columns=_names(columns), changes=changed)
    if commands:
        _print_commands(study, folder, data_dir)
        return
    if picture is not None:
        if type(spec).draw is Spec.draw:  # fail before hours of training
            raise ValueError(f"--picture needs an experiment with one, such as scoreboard or long-run, got {spec.name}")
        if picture.suffix not in (".png", ".pdf"):
            raise ValueError(f"--picture must end with .png or .pdf, got {picture}")
    engine = make_engine(**flags)
    with interrupted_by_sigterm(), watching() as watch, common.progress_bar("measuring") as progress:
        result: StudyResult = study.run(folder, data_dir=data_dir, engine=engine, watch=watch, progress=progress)
    for table in result.tables:
        common.show_table(table.as_rich())
    options = {"methods": methods, "columns": columns, "data-dir": "DATA" if data_dir else ""}
    options |= {"output": output.name if output else "", "picture": picture.name if picture else ""}
    for path in _write(result, _command(name, scale, changed, options), folder, output, picture):
        echo(f"written to {path}")
    common.exit_with_failures(result.failures(), folder)


def _write(
    result: StudyResult, command: str, folder: Path, output: Path | None, picture: Path | None
) -> Sequence[Path]:
    """Write the files and return their paths."""
    written = [result.experiment.write(folder)]
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        link = Path(os.path.relpath(picture, output.parent)).as_posix() if picture else ""
        write_text(output, result.markdown(command, link))
        written.append(output)
    if picture is not None:
        from borat.lab.figures import save

        written.append(save(result.study.spec.draw(result), picture))
    return written


def _show_list() -> None:
    from borat.lab.reproduce.reading import load_spec, spec_names

    for name in spec_names():
        spec = load_spec(name)
        sizes = "; ".join(f"{scale}: {spec.at(scale).size()}" for scale in ("full", "mini"))
        console.print(f"[bold]{name}[/]  {escape(spec.source)}", highlight=False)
        for line in (spec.question, sizes):
            console.print(Padding(escape(line), (0, 0, 0, 4)), highlight=False)
    echo("`borat reproduce NAME` runs the mini scale; add `--scale full` for the paper's.")


def _parse_changes(texts: Sequence[str]) -> dict[str, Any]:
    """Parse KEY=VALUE, or KEY=VALUE,VALUE for several values."""
    changes: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign:
            raise ValueError(f"--set must be KEY=VALUE, got {text!r}")
        key = pick("key", key.strip().replace("-", "_"), RunConfig.model_fields)
        values = parse_values(key, value)
        changes[key] = values[0] if len(values) == 1 else values
    return changes


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _command(name: str, scale: str, changes: Mapping[str, Any], options: Mapping[str, str]) -> str:
    """Return the command line that reproduces this result."""
    from borat.lab.reproduce.spec import changes_text

    words = ["borat", "reproduce", Path(name).name, "--scale", scale]
    for key, value in changes_text(changes).items():
        words += ["--set", f"{key}={value}"]
    for flag, text in options.items():
        words += [f"--{flag}", text] if text else []
    return shlex.join(words)


def _print_commands(study: Study, folder: Path, data_dir: Path | None) -> None:
    """Print a `borat train` command for each missing run, for a cluster's scheduler or for several devices."""
    missing = study.missing(folder)
    for config in missing:
        words = ["borat", "train", *_flags(config), "--out", str(folder)]
        words += ["--data-dir", str(data_dir)] if data_dir else []
        print(shlex.join(words))
    if not missing:
        echo("no run is missing: leave out --commands to see the table")


def _flags(config: RunConfig) -> list[str]:
    """Return the flags of ``borat train`` that differ from the optimizer's defaults."""
    words = ["--optimizer", config.optimizer]
    default = RunConfig(optimizer=config.optimizer).as_dict()
    for key, value in config.as_dict().items():
        if value != default[key]:
            words += [f"--{key.replace('_', '-')}", str(value).lower() if isinstance(value, bool) else str(value)]
    return words
