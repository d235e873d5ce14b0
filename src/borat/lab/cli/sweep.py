"""``borat sweep``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from borat.lab.cli import common
from borat.lab.cli.common import app, console, describe, describe_failures, echo, value_text, varying, watching
from borat.lab.config import RunConfig, check_method
from borat.lab.metrics import primary_result, with_unit
from borat.lab.signals import interrupted_by_sigterm
from borat.lab.store.run import DONE, Run
from borat.lab.sweeps.engines import make_engine
from borat.lab.sweeps.grid import expand, parse_values
from borat.lab.sweeps.jobs import Outcome


@app.command()
@common.with_flags(common.CONFIG_FLAGS, common.ENGINE_FLAGS)
def sweep(
    out: common.Out = common.RUNS,
    data_dir: common.DataDir = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and their states, and exit.")] = False,
    **flags: Any,
) -> None:
    """Train every combination of values. The same command continues an interrupted sweep and skips finished runs.

    Flags of the configuration take several values, separated by commas: --lr 0.01,0.1,1 --optimizer sgd,borat.
    """
    given = {key: text for key, text in flags.items() if text is not None}
    changes = {key: parse_values(key, text) for key, text in given.items() if key in RunConfig.model_fields}
    if not changes:
        raise ValueError("nothing to sweep: give flags such as --lr 0.01,0.1,1 --optimizer sgd,borat")
    configs = expand(changes)
    for config in configs:
        check_method(config)
    from borat.lab.training.model import check_names  # slow to import: after the flags are checked

    for config in configs:
        check_names(config)
    states = {config: _state(config, out) for config in configs}
    if dry_run:
        _list_runs(states)
        return
    engine = make_engine(**{name: value for name, value in given.items() if name not in changes})
    from borat.lab.sweeps.engines.local import LocalEngine
    from borat.lab.sweeps.sweep import run_configs

    if isinstance(engine, LocalEngine) and data_dir is None:
        _download([config for config, state in states.items() if state not in DONE])
    _check_own_data(states, out, data_dir)
    with interrupted_by_sigterm(), watching() as watch:
        outcomes = run_configs(configs, out, data_dir=data_dir, engine=engine, watch=watch)
    _show(outcomes)
    echo(f"{sum(outcome.status != 'failed' for outcome in outcomes)} of {len(outcomes)} runs are in {out}")
    common.exit_with_failures(describe_failures(outcomes), out)


def _state(config: RunConfig, out: Path) -> str:
    run = Run(out / config.digest)
    try:
        metrics = run.metrics
    except ValueError as error:
        return f"damaged: {error}"
    if not run.exists():
        return "missing"
    interrupted = f"interrupted after {len(metrics.epochs)} of {config.epochs} epochs"
    return interrupted if metrics.status == "running" else metrics.status


def _list_runs(states: Mapping[RunConfig, str]) -> None:
    table = Table("run", "configuration", "state")
    keys = varying(list(states))
    for config, state in states.items():
        table.add_row(config.digest, describe(config, keys), state)
    common.show_table(table)
    done = sum(state in DONE for state in states.values())
    echo(f"{len(states)} runs: {done} done, {len(states) - done} to do")


def _download(configs: Sequence[RunConfig]) -> None:
    """Download data sets before the workers start, since their output goes to files."""
    from borat.lab import data

    for name, train_split in dict.fromkeys((config.data, config.train_split) for config in configs):
        if name in data.FROM_HUB:
            data.load(name, train_split=train_split)


def _check_own_data(states: Mapping[RunConfig, str], out: Path, data_dir: Path | None) -> None:
    """Load user data, to report errors before any run starts; finished runs must have used the same data."""
    from borat.lab import data

    loaded: dict[tuple[object, ...], data.Task] = {}
    for config, state in states.items():
        if config.data in data.OWN:
            key = tuple(getattr(config, name) for name in ("data", *data.KEYS))
            loaded[key] = loaded.get(key) or data.load_for(config, data_dir)
            if state in DONE:
                Run(out / config.digest).check_data(asdict(loaded[key].description))


def _show(outcomes: Sequence[Outcome]) -> None:
    """Print a table, or a line for each run if the terminal is too narrow."""
    table = result_table(outcomes)
    width = console.measure(table, options=console.options.update(max_width=common.UNLIMITED)).minimum
    if width <= console.width or not console.is_terminal:
        common.show_table(table)
        return
    keys = varying([outcome.config for outcome in outcomes])
    for outcome in outcomes:
        console.print(f"{escape(describe(outcome.config, keys))}: {_cell(outcome)}", highlight=False)


def result_table(outcomes: Sequence[Outcome]) -> Table:
    """Return a table of results, with a column for each value of the key with the most values."""
    configs = [outcome.config for outcome in outcomes]
    keys = varying(configs)
    across = max(keys, key=lambda key: len({getattr(config, key) for config in configs}), default=None)
    rows: dict[str, dict[str, str]] = {}
    for config, outcome in zip(configs, outcomes, strict=True):
        column = f"{across} {value_text(getattr(config, across))}" if across else "result"
        row = describe(config, [key for key in keys if key != across])
        rows.setdefault(row, {})[column] = _cell(outcome)
    metrics = [found[0] for outcome in outcomes if (found := primary_result(outcome.result, "test", "validation"))]
    table = Table(title=metrics[0].replace("_", " ").capitalize() if metrics else "", title_justify="left")
    table.add_column("method")
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    for column in columns:
        table.add_column(column, justify="right")
    for name, cells in rows.items():
        table.add_row(name, *(cells.get(column, "") for column in columns))
    return table


def _cell(outcome: Outcome) -> str:
    found = primary_result(outcome.result, "test", "validation")
    return with_unit(*found) if outcome.status == "finished" and found else f"[red]{outcome.status}[/]"
