"""Long runs: losses over characters and over time, the time of a batch and the memory of the optimizer."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from borat.lab.config import RunConfig
from borat.lab.metrics import metric_text
from borat.lab.reproduce.kinds.curves import CurvesSpec
from borat.lab.reproduce.run import Result
from borat.lab.reproduce.spec import duration
from borat.lab.store.records import curve
from borat.lab.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class LongSpec(CurvesSpec):
    """Runs on a text; ``train_limit`` is the number of windows in an epoch, after which a run is evaluated."""

    def tables(self, result: Result) -> list[Table]:
        comparison, *others = super().tables(result)
        return [comparison, _costs(result), *others]

    def remarks(self, result: Result) -> list[str]:
        from borat.lab.models import make_model  # imports PyTorch, which reading a file does not need

        config = result.cells[0].cell.configs[0]
        (classes,) = set(result.classes.values())
        model = make_model(config.model, input_shape=(config.window or 1,), classes=classes)
        size, seen = sum(p.numel() for p in model.parameters()) / 1e6, config.epochs * _characters(config) / 1e6
        return [
            f"The model has {size:.2f} million parameters and sees {seen:.2f} million characters.",
            "Time is that of training alone, without evaluation. Runs that train side by side share the machine.",
            *super().remarks(result),
        ]

    def draw(self, result: Result) -> Figure:
        """Draw the loss of all runs over characters and over time; a learning rate that was not chosen is thin."""
        from matplotlib.figure import Figure

        from borat.lab.figures import method_styles

        styles = method_styles(cell.cell.configs[0].method for cell in result.cells)
        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for cell in result.cells:
            for digest, run in cell.runs.iterrows():
                losses, chosen = curve(run.history, self.select_on), digest in cell.chosen.index
                seen = [(i + 1) * _characters(run.config) / 1e6 for i in range(len(losses))]
                minutes = [seconds / 60.0 for seconds in accumulate(epoch["seconds"] for epoch in run.history)]
                name = f"{cell.cell.method}, lr {run.lr:g}" if len(cell.runs) > 1 else cell.cell.method
                look: Any = {"color": styles[run.method].light, "linewidth": 1.8 if chosen else 0.7}
                for axes, x in zip(panels, (seen, minutes), strict=True):
                    axes.plot(x, losses, label=name, **look)
        for axes, label in zip(panels, ("million characters", "minutes of training"), strict=True):
            axes.set_xlabel(label)
            axes.grid(alpha=0.3)
        panels[0].set_ylabel(f"{metric_text(self.select_on)}, nats per character")
        panels[1].legend(frameon=False, fontsize=8)
        figure.suptitle(self.title, size=10)
        return figure


def _characters(config: RunConfig) -> int:
    """Return the number of characters in an epoch."""
    return (config.train_limit or 1) * (config.window or 1)


def _costs(result: Result) -> Table:
    """Return the time of a batch and the memory of the optimizer's state, of the chosen runs."""
    rows = []
    for cell in result.cells:
        if (config := cell.config) is not None:
            batches = config.epochs * -(-(config.train_limit or 1) // config.batch_size)
            seconds = float(cell.chosen.seconds.mean())
            memory = f"{state_bytes(config):.0f}"
            rows.append((cell.cell.method, f"{seconds / batches:.3f}", duration(seconds), memory))
    head = ("method", "seconds per batch", "training", "optimizer state, bytes per parameter")
    return Table("Time and memory", head, rows)


def state_bytes(config: RunConfig, width: int = 256) -> float:
    """Return the memory of an optimizer's state in bytes per parameter, measured on one layer after a few steps.

    >>> state_bytes(RunConfig(optimizer="sgd")), round(state_bytes(RunConfig(optimizer="adamw")))
    (4.0, 8)
    """
    import torch

    from borat.lab.baselines import make_optimizer, take_step
    from borat.lab.timing.optimizers import state_size

    layer = torch.nn.Linear(width - 1, width)
    optimizer = make_optimizer(layer, config)
    for _ in range(3 * config.bundle_size):
        optimizer.zero_grad()
        loss = layer(torch.ones(1, width - 1)).square().mean()
        loss.backward()
        take_step(optimizer, loss.detach())
    return state_size(optimizer) / width**2


KIND = LongSpec
