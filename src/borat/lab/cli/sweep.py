"""``borat sweep``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from borat.lab.cli.common import app, console, fits, parse_changes, refusal, say, show_table, with_flags_of
from borat.lab.cli.options import (
    RUNS,
    Address,
    Changes,
    CpusPerRun,
    DataDir,
    EngineName,
    GpusPerRun,
    Out,
    Threads,
    Workers,
)
from borat.lab.cli.watch import describe, last_line, shown, varying, watching
from borat.lab.config import RunConfig, check_method
from borat.lab.metrics import judged, with_unit
from borat.lab.signals import interrupted_by_sigterm
from borat.lab.store.run import Run
from borat.lab.sweeps.engines import make_engine
from borat.lab.sweeps.grid import SweepFile, parse_values
from borat.lab.sweeps.jobs import Outcome


@app.command()
@partial(with_flags_of, lists=True)
def sweep(
    spec: Annotated[
        Path | None, typer.Argument(help="A TOML or JSON file with the tables base, grid and methods.")
    ] = None,
    out: Out = RUNS,
    data_dir: DataDir = None,
    changes: Changes = None,
    workers: Workers = None,
    threads: Threads = None,
    engine: EngineName = "local",
    address: Address = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs: which are done, which missing.")] = (
        False
    ),
    **flags: str | None,
) -> None:
    """Train every combination of settings. The same command skips what is done and goes on with the rest.

    A flag of the configuration may have several values: --lr 0.01,0.1,1 --optimizer sgd,borat. It wins over the spec.
    """
    try:
        told = {key: parse_values(key, text) for key, text in flags.items() if text is not None}
        configs = _configs(spec, parse_changes(changes) | told)
    except (ValueError, OSError) as error:
        raise refusal(error) from error
    try:
        if dry_run:
            _list_runs(configs, out)
            return
        where = make_engine(
            engine,
            workers=workers,
            threads=threads,
            address=address,
            cpus_per_run=cpus_per_run,
            gpus_per_run=gpus_per_run,
        )
        from borat.lab.sweeps.sweep import run_configs

        if engine == "local" and data_dir is None:
            _fetch([config for config in configs if not _is_done(config, out)])
        _check_own_data(configs, out, data_dir)
        with interrupted_by_sigterm(), watching(console) as watch:
            outcomes = run_configs(configs, out, data_dir=data_dir, engine=where, watch=watch)
    except (ValueError, OSError) as error:
        raise refusal(error) from error
    except KeyboardInterrupt:
        done = sum(_is_done(config, out) for config in configs)
        say(f"stopped with {done} of {len(configs)} runs done; the same command continues")
        raise typer.Exit(130) from None
    _show(outcomes)
    _finish(outcomes, out)


def _configs(spec: Path | None, flags: dict[str, list[Any]]) -> list[RunConfig]:
    plan = SweepFile.from_file(spec) if spec else SweepFile()
    if plan == SweepFile() and not flags:
        nothing = f"{spec} is empty" if spec else "nothing to sweep"
        raise ValueError(f"{nothing}: give a spec, or flags such as --lr 0.01,0.1,1 --optimizer sgd,borat")
    configs = plan.configs(flags)
    for config in configs:
        check_method(config)
    from borat.lab.training.checks import check_names  # slow to import, and not needed to see a mistake in a flag

    for config in configs:
        check_names(config)
    return configs


def _fetch(configs: Sequence[RunConfig]) -> None:
    """Get data sets from the hub here, once, where it can be said how large they are: workers print into files."""
    from borat.lab import data

    for name, train_split in dict.fromkeys((config.data, config.train_split) for config in configs):
        if name in data.FROM_HUB:
            data.load(name, train_split=train_split)


def _check_own_data(configs: Sequence[RunConfig], out: Path, data_dir: Path | None) -> None:
    """A user's own data are loaded here, too: what is wrong with them is told before anything starts, and a run that
    is done must have been on them."""
    from borat.lab import data
    from borat.lab.training.train import DATA_KEYS, load_data

    found: dict[tuple[object, ...], data.Task] = {}
    for config in configs:
        if config.data in data.OWN:
            key = tuple(getattr(config, name) for name in ("data", *DATA_KEYS))
            found[key] = found.get(key) or load_data(config, data_dir)
            if _is_done(config, out):
                Run(out / config.digest).check_data(asdict(found[key].description))


def _list_runs(configs: Sequence[RunConfig], out: Path) -> None:
    table = Table("run", "settings", "state")
    for config in configs:
        table.add_row(config.digest, describe(config, varying(configs)), _state(config, out))
    show_table(table)
    done = sum(_is_done(config, out) for config in configs)
    say(f"{len(configs)} runs: {done} done, {len(configs) - done} to do")


def _is_done(config: RunConfig, out: Path) -> bool:
    """Return True if a run is done; one that is damaged is not."""
    with suppress(ValueError):
        return Run(out / config.digest).metrics.is_done
    return False


def _state(config: RunConfig, out: Path) -> str:
    run = Run(out / config.digest)
    if not run.exists():
        return "missing"
    try:
        metrics = run.metrics
    except ValueError as error:
        return f"damaged: {error}"
    done = f"interrupted after {len(metrics.epochs)} of {config.epochs} epochs"
    return done if metrics.status == "running" else metrics.status


def _show(outcomes: Sequence[Outcome]) -> None:
    """A table or, where the terminal is too narrow for one, a line for each run."""
    table = result_table(outcomes)
    if fits(table):
        show_table(table)
        return
    show = varying([outcome.config for outcome in outcomes])
    for outcome in outcomes:
        console.print(f"{escape(describe(outcome.config, show))}: {_cell(outcome)}", highlight=False)


def result_table(outcomes: Sequence[Outcome]) -> Table:
    """Return the table of results: the key with the most values across, the others and the methods down."""
    configs = [outcome.config for outcome in outcomes]
    keys = varying(configs)
    across = max(keys, key=lambda key: len({getattr(config, key) for config in configs}), default=None)
    down = [key for key in keys if key != across]
    rows: dict[str, dict[str, str]] = {}
    for config, outcome in zip(configs, outcomes, strict=True):
        column = f"{across} {shown(getattr(config, across))}" if across else "result"
        rows.setdefault(describe(config, down), {})[column] = _cell(outcome)
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    table = Table(title=_metric(outcomes), title_justify="left")
    table.add_column("method")
    for column in columns:
        table.add_column(column, justify="right")
    for name, row in rows.items():
        table.add_row(name, *(row.get(column, "") for column in columns))
    return table


def _metric(outcomes: Sequence[Outcome]) -> str:
    found = [verdict[0] for outcome in outcomes if (verdict := judged(outcome.result, "test", "validation"))]
    return found[0].replace("_", " ").capitalize() if found else ""


def _cell(outcome: Outcome) -> str:
    verdict = judged(outcome.result, "test", "validation")
    return with_unit(*verdict) if outcome.status == "finished" and verdict else f"[red]{outcome.status}[/]"


def _finish(outcomes: Sequence[Outcome], out: Path) -> None:
    """Say where the runs are and which failed for the same reason; that is also the exit code."""
    show = varying([outcome.config for outcome in outcomes])
    failed: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.status == "failed":
            failed.setdefault(last_line(outcome.error), []).append(describe(outcome.config, show))
    for reason, names in failed.items():
        console.print(f"[red]failed:[/] {escape(reason)}\n  {'; '.join(names)}", highlight=False, soft_wrap=True)
    done = len(outcomes) - sum(len(names) for names in failed.values())
    say(f"{done} of {len(outcomes)} runs are in {out}")
    if failed:
        say(f"tracebacks are in {out / 'logs'}; once the cause is gone, the same command goes on")
        raise typer.Exit(1)
