"""The command line of the lab."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

import borat
from borat.lab.config import RunConfig, read_mapping

app = typer.Typer(
    help="BORAT: train neural networks without tuning learning rates.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(f"borat {borat.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """BORAT: train neural networks without tuning learning rates."""


@app.command()
def demo(
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 10,
    picture: Annotated[
        Path | None, typer.Option(help="Try seven learning rates and three seeds; draw them here.")
    ] = None,
) -> None:
    """Train on scikit-learn's digits with a good and with a far too large learning rate."""
    from borat.lab import demo as digits

    if picture is not None and not picture.parent.is_dir():
        raise typer.BadParameter(f"the folder {picture.parent} does not exist", param_hint="--picture")
    start = time.perf_counter()
    rates, seeds = (digits.MANY_LEARNING_RATES, 3) if picture else (digits.LEARNING_RATES, 1)
    results: list[digits.Result] = []
    with _progress("training", len(digits.METHODS) * len(rates) * seeds) as (progress, task):
        for result in digits.run(epochs, rates, seeds):
            results.append(result)
            progress.update(task, advance=1, description=f"{result.method}, lr = {result.lr:g}")
    console.print(f"Test accuracy on scikit-learn's digits after {epochs} epochs", highlight=False)
    table = Table()
    table.add_column("method")
    for lr in rates:
        table.add_column(f"lr = {lr:g}", justify="right")
    best = max(r.test_accuracy for r in results)
    for method in digits.METHODS:
        row = [[r.test_accuracy for r in results if (r.method, r.lr) == (method, lr)] for lr in rates]
        table.add_row(method, *(_accuracy(sum(values) / seeds, best) for values in row))
    console.print(table)
    ratio = max(rates) / min(rates)
    console.print(f"All methods saw the same batches; the largest lr is {ratio:g} times the smallest.", highlight=False)
    console.print(f"{time.perf_counter() - start:.0f} s", highlight=False)
    if picture is not None:
        digits.draw(results, picture)
        console.print(f"drawn in {picture}", highlight=False)


@contextmanager
def _progress(description: str, total: int) -> Iterator[tuple[Progress, TaskID]]:
    columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress, progress.add_task(description, total=total)


def _accuracy(value: float, best: float) -> str:
    colour = "green" if value >= best - 0.02 else "yellow" if value >= best - 0.2 else "red"
    return f"[{colour}]{100 * value:.1f} %[/]"


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


def _with_flags_of(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one flag for each key of the configuration."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    hints = get_type_hints(RunConfig)
    flags = [
        inspect.Parameter(
            key.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                hints[key.name] | None, typer.Option(help=f"default: {key.default}", show_default=False)
            ],
        )
        for key in fields(RunConfig)
    ]
    command.__signature__ = signature.replace(parameters=[*own, *flags])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in (*own, *flags)}
    return command


app.command()(_with_flags_of(train))


@app.command()
def bench(
    models: Annotated[list[str] | None, typer.Argument(help="Some of WRN-40-4, ResNet-18, Bi-LSTM, MLP [all].")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each optimizer.")] = 15,
    output: Annotated[Path | None, typer.Option(help="Also write the tables to this Markdown file.")] = None,
) -> None:
    """Measure the optimizer call beside PyTorch's SGD and Adam, and the dual beside quadprog."""
    from borat.lab import bench as measure
    from borat.lab import bench_report

    unknown = [name for name in models or [] if name not in measure.MODELS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(measure.MODELS)}", param_hint="MODELS")
    costs: list[measure.OptimizerCost] = []
    names = models or list(measure.MODELS)
    with _progress("measuring", len(names) * (rounds + measure.WARM_UP)) as (progress, task):
        for name in names:
            progress.update(task, description=name)
            costs += measure.measure_optimizers(name, rounds, lambda: progress.advance(task))
    report = bench_report.tables(costs, measure.measure_dual())
    for table in report:
        console.print(table.as_rich())
    console.print(measure.machine(), highlight=False)
    if output is not None:
        bench_report.write(output, report, command=" ".join(["borat bench", *(models or []), f"--rounds {rounds}"]))
        console.print(f"written to {output}", highlight=False)
