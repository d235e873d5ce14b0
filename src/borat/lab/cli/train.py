"""``borat train``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from borat.lab.cli.common import app, console, with_flags_of
from borat.lab.config import RunConfig, read_mapping


@app.command()
@with_flags_of
def train(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML or JSON file with the keys that are flags below.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where runs are kept, each in a folder named by its configuration.")] = Path(
        "runs"
    ),
    data_dir: Annotated[Path | None, typer.Option(help="A folder of the data set's files; the hub without it.")] = None,
    **flags: object,
) -> None:
    """Train one model. The same command goes on with a run that was interrupted."""
    from borat.lab.train import Interrupted
    from borat.lab.train import train as run_training

    try:
        values = read_mapping(config) if config else {}
        settings = RunConfig.from_mapping({**values, **{k: v for k, v in flags.items() if v is not None}})
        folder = out / settings.digest
        with _training_bar(settings) as report:
            metrics = run_training(settings, folder, data_dir=data_dir, report=report)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    except Interrupted as interruption:
        console.print(f"{interruption} (in {folder})", highlight=False)
        raise typer.Exit(130) from interruption
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in metrics.result.items())
    console.print(f"{metrics.status} after {len(metrics.epochs)} epochs: {shown}", highlight=False)
    console.print(f"kept in {folder}", highlight=False)


@contextmanager
def _training_bar(config: RunConfig) -> Iterator[Callable[[Any, Any, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"epoch 1 of {config.epochs}", total=None)

        def report(position: Any, tally: Any, batches: int) -> None:
            means = tally.means()
            kind = max(tally.kinds, key=tally.kinds.get, default="")
            text = f"epoch {position.epoch + 1} of {config.epochs}  loss {means['loss']:.4f}  "
            text += f"accuracy {100 * means['accuracy']:.1f} %  {kind}"
            done = position.epoch * batches + position.batch
            progress.update(task, completed=done, total=batches * config.epochs, description=text)

        yield report
