"""``borat train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from borat.lab.cli.common import CONFIG_FLAGS, RUNS, DataDir, Out, app, echo, note, progress_bar, warn, with_flags
from borat.lab.config import Execution, RunConfig, check_method
from borat.lab.files import read_mapping
from borat.lab.metrics import unseen
from borat.lab.signals import interrupted_by_sigterm
from borat.lab.store.run import Run
from borat.lab.sweeps.grid import parse_value


@app.command()
@with_flags(CONFIG_FLAGS)
def train(
    config: Annotated[
        Path | None,
        typer.Argument(help="TOML or JSON file with keys of the configuration, or the folder of a run."),
    ] = None,
    out: Out = RUNS,
    data_dir: DataDir = None,
    resume: Annotated[bool, typer.Option("--resume", help="Fail if there is no run to continue.")] = False,
    devices: Annotated[int, typer.Option(help="Number of processes, each with a device.")] = 1,
    strategy: Annotated[str, typer.Option(help="ddp, fsdp or auto (ddp with several devices).")] = "auto",
    accelerator: Annotated[str, typer.Option(help="cpu, gpu, mps or auto (the best available).")] = "auto",
    compile_model: Annotated[bool, typer.Option("--compile", help="Compile the model.")] = False,
    tensorboard: Annotated[bool, typer.Option(help="Write TensorBoard events.")] = True,
    **flags: str | None,
) -> None:
    """Train one model. The same command continues an interrupted run."""
    given = {key: parse_value(key, text) for key, text in flags.items() if text is not None}
    run_config, folder = _find_run(config, out, given)
    check_method(run_config)
    if resume and not Run(folder).exists():
        raise ValueError(f"there is no run to resume in {folder}")
    execution = Execution(
        devices=devices, strategy=strategy, accelerator=accelerator, compile=compile_model, tensorboard=tensorboard
    )
    from borat.lab.training.train import train as run_training  # slow to import: after the flags are checked

    _announce_processes(execution)
    with interrupted_by_sigterm(), progress_bar("starting") as progress:

        def show(position: Any, tally: Any, batches: int) -> None:
            means, epochs = tally.means(), run_config.epochs
            text = f"epoch {position.epoch + 1} of {epochs}  loss {means['loss']:.4f}"
            if tally.answers:
                text += f"  accuracy {100 * means['accuracy']:.1f} %"
            progress(position.epoch * batches + position.batch, epochs * batches, text)

        metrics = run_training(run_config, folder, data_dir=data_dir, execution=execution, listener=show)
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in unseen(metrics.result).items())
    echo(f"{metrics.status} after {len(metrics.epochs)} epochs: {shown}")
    echo(f"stored in {folder}")


def _announce_processes(execution: Execution) -> None:
    """Say that processes start, which takes a while; warn if they are more than the cores."""
    import torch

    from borat.lab.sweeps.engines.local import usable_cores

    devices, cores = execution.devices, usable_cores()
    cpu = ("cpu",) if torch.accelerator.is_available() else ("cpu", "auto")
    if execution.accelerator in cpu and devices > cores:
        warn(f"devices={devices} processes share {cores} cores: devices={cores} would be faster")
    if devices > 1:
        note(f"starting {devices} processes")


def _find_run(path: Path | None, out: Path, flags: dict[str, Any]) -> tuple[RunConfig, Path]:
    """Return the configuration of a run and its folder, from a file of keys or from the folder of a run."""
    if path is not None and path.is_dir():
        if not Run(path).exists():
            raise ValueError(f"{path} holds no run: it has no config.json")
        return Run(path).config.replace(**flags), path
    config = RunConfig(**{**(read_mapping(path) if path else {}), **flags})
    return config, out / config.digest
