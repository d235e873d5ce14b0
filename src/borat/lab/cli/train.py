"""``borat train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from borat.lab.cli import common
from borat.lab.cli.common import app, echo, note, warn
from borat.lab.config import Execution, RunConfig, check_method
from borat.lab.files import read_mapping
from borat.lab.metrics import unseen
from borat.lab.signals import interrupted_by_sigterm
from borat.lab.store.run import Run
from borat.lab.sweeps.grid import parse_value


@app.command()
@common.with_flags(common.EXECUTION_FLAGS, common.CONFIG_FLAGS)
def train(
    config: Annotated[
        Path | None,
        typer.Argument(help="TOML or JSON file with keys of the configuration, or the folder of a run."),
    ] = None,
    out: common.Out = common.RUNS,
    data_dir: common.DataDir = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Only continue an existing run; fail if there is none.")
    ] = False,
    **flags: Any,
) -> None:
    """Train one model. The same command continues an interrupted run."""
    given = {key: value for key, value in flags.items() if value is not None}
    execution = Execution(**{key: given.pop(key) for key in Execution.model_fields if key in given})
    run_config, folder = _find_run(config, out, {key: parse_value(key, text) for key, text in given.items()})
    check_method(run_config)
    if resume and not Run(folder).exists():
        raise ValueError(f"there is no run to resume in {folder}")
    from borat.lab.training.train import train as run_training  # slow to import: after the flags are checked

    _announce_processes(execution)
    with interrupted_by_sigterm(), common.progress_bar("starting") as progress:

        def show(position: Any, tally: Any, batches: int) -> None:
            means, epochs = tally.means(), run_config.epochs
            text = f"epoch {position.epoch + 1} of {epochs}  loss {means['loss']:.4f}"
            if tally.answers:
                text += f"  accuracy {100 * means['accuracy']:.1f} %"
            progress(position.epoch * batches + position.batch, epochs * batches, text)

        metrics = run_training(run_config, folder, data_dir=data_dir, execution=execution, listener=show)
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in unseen(metrics.result).items())
    epochs = len(metrics.epochs)
    echo(f"{metrics.status} after {epochs} epoch{'s' * (epochs != 1)}: {shown}")
    echo(f"stored in {folder}")


def _announce_processes(execution: Execution) -> None:
    """Print that processes are starting; warn if there are more of them than cores."""
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
