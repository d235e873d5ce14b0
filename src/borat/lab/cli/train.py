"""``borat train``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from borat.lab.cli.common import app, console, notes, parse_changes, refusal, say, with_flags_of
from borat.lab.cli.options import RUNS, Changes, DataDir, Out
from borat.lab.config import Execution, RunConfig, check_method
from borat.lab.files import read_mapping
from borat.lab.metrics import unseen
from borat.lab.signals import interrupted_by_sigterm
from borat.lab.store.run import Run

BESIDE_TEXT = 20
"""Columns of the count of batches and of the time that is left."""


@app.command()
@with_flags_of
def train(
    config: Annotated[
        Path | None,
        typer.Argument(help="A TOML or JSON file with the keys that are flags below, or the folder of a run."),
    ] = None,
    out: Out = RUNS,
    data_dir: DataDir = None,
    changes: Changes = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Only go on with a run that was interrupted: it is an error if there is none."),
    ] = False,
    devices: Annotated[int, typer.Option(help="Processes, each with a device of its own.")] = 1,
    strategy: Annotated[str, typer.Option(help="ddp, fsdp, or auto: ddp if there are several devices.")] = "auto",
    accelerator: Annotated[str, typer.Option(help="cpu, gpu, mps, or auto: the best there is.")] = "auto",
    compile_model: Annotated[bool, typer.Option("--compile", help="Compile the model.")] = False,
    tensorboard: Annotated[bool, typer.Option(help="Write events for TensorBoard.")] = True,
    **flags: object,
) -> None:
    """Train one model. The same command goes on with a run that was interrupted."""
    console.quiet = notes.quiet = os.environ.get("LOCAL_RANK", "0") != "0"  # one of several processes speaks
    try:
        told = _single(parse_changes(changes)) | {k: v for k, v in flags.items() if v is not None}
        run_config, folder = _find_run(config, out, told)
        check_method(run_config)
        if resume and not Run(folder).exists():
            raise ValueError(f"there is no run to resume in {folder}")
        execution = Execution(
            devices=devices, strategy=strategy, accelerator=accelerator, compile=compile_model, tensorboard=tensorboard
        )
        from borat.lab.training.train import Interrupted  # slow to import, and not needed to see a mistake
        from borat.lab.training.train import train as run_training

        _tell_of_processes(execution)
        try:
            with interrupted_by_sigterm(), _training_bar(run_config) as show:
                metrics = run_training(run_config, folder, data_dir=data_dir, execution=execution, listener=show)
        except Interrupted as interruption:
            say(f"{interruption} (in {folder})")
            raise typer.Exit(130) from interruption
        except KeyboardInterrupt:
            say(f"stopped before the next batch; the same command continues (in {folder})")
            raise typer.Exit(130) from None
    except (ValueError, OSError, ImportError) as error:
        raise refusal(error) from error
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in unseen(metrics.result).items())
    say(f"{metrics.status} after {len(metrics.epochs)} epochs: {shown}")
    say(f"kept in {folder}")


def _tell_of_processes(execution: Execution) -> None:
    """Many take long to start, and on processors more than there are cores only wait for each other."""
    import torch

    from borat.lab.sweeps.engines.local import usable_cores

    devices, cores = execution.devices, usable_cores()
    cpu = ("cpu",) if torch.accelerator.is_available() else ("cpu", "auto")
    if execution.accelerator in cpu and devices > cores:
        warnings.warn(f"devices={devices} processes share {cores} cores: devices={cores} would be faster", stacklevel=1)
    if devices > 1:
        notes.print(f"starting {devices} processes", highlight=False)


def _single(changes: dict[str, list[Any]]) -> dict[str, Any]:
    for key, values in changes.items():
        if len(values) > 1:
            raise ValueError(f"--set takes one value of {key} for a run, got {len(values)}; borat sweep takes several")
    return {key: value for key, (value,) in changes.items()}


def _find_run(path: Path | None, out: Path, flags: dict[str, Any]) -> tuple[RunConfig, Path]:
    """Return the configuration of a run and its folder, from a file of keys or from the folder of a run."""
    if path is not None and path.is_dir():
        if not Run(path).exists():
            raise ValueError(f"{path} holds no run: there is no config.json in it")
        return Run(path).config.replace(**flags), path
    config = RunConfig(**{**(read_mapping(path) if path else {}), **flags})
    return config, out / config.digest


@contextmanager
def _training_bar(config: RunConfig) -> Iterator[Callable[[Any, Any, int], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(console.width // 8),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"epoch 1 of {config.epochs}", total=None)

        def show(position: Any, tally: Any, batches: int) -> None:
            means = tally.means()
            kind = max(tally.kinds, key=tally.kinds.get, default="")
            accuracy, perplexity = f"accuracy {100 * means['accuracy']:.1f} %", f"perplexity {means['perplexity']:.2f}"
            quality = accuracy if tally.answers else perplexity
            text = _fitting(
                [f"epoch {position.epoch + 1} of {config.epochs}", quality, f"loss {means['loss']:.4f}", kind]
            )
            done = position.epoch * batches + position.batch
            progress.update(task, completed=done, total=batches * config.epochs, description=text)

        yield show


def _fitting(parts: Sequence[str]) -> str:
    """As many parts of a text as there is room for; the first in any case."""
    text, *others = parts
    for part in others:
        if len(text) + 2 + len(part) > console.width - console.width // 8 - BESIDE_TEXT:
            break
        text += f"  {part}"
    return text
