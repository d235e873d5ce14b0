"""Curves: a table, a metric over the epochs and over time, and the cost of each method."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from borat.lab.config import RunConfig
from borat.lab.metrics import metric_text, value_text
from borat.lab.reproduce.kinds.table import TableSpec
from borat.lab.reproduce.run import Result
from borat.lab.reproduce.spec import duration
from borat.lab.store.records import curve
from borat.lab.tables import DASH, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIT = "fit_accuracy"


class CurvesSpec(TableSpec):
    """The best configuration of each method, its metric over the epochs, and its cost."""

    @property
    def curve_metric(self) -> str:
        """The metric, or the one that runs are chosen by if the metric is measured only at the end."""
        return self.select_on if self.metric.startswith("test") else self.metric

    def tables(self, result: Result) -> list[Table]:
        comparison, choices, *claims = super().tables(result)
        return [comparison, choices, _curves(self.curve_metric, result), _costs(result), *claims]

    def remarks(self, result: Result) -> list[str]:
        timed = "Time is that of training alone, without evaluation. Runs that train side by side share the machine."
        return [*super().remarks(result), timed]

    def draw(self, result: Result) -> Figure:
        from borat.lab.reproduce.picture import draw_curves  # imports Matplotlib, which the tables do not need

        return draw_curves(result, self.curve_metric)


def _curves(metric: str, result: Result) -> Table:
    has_fit = any(FIT in cell.chosen for cell in result.cells)
    rows = []
    for cell in result.cells:
        values = curve(cell.chosen.history.iloc[0], metric) if len(cell.chosen) else []
        places = [max(math.ceil(len(values) * part / 4) - 1, 0) for part in (1, 2, 3, 4)]
        texts = [value_text(metric, values[place]) if values else DASH for place in places]
        fit = cell.chosen[FIT].mean() if has_fit else math.nan
        fits = [DASH if math.isnan(fit) else value_text(FIT, fit)] if has_fit else []
        rows.append((cell.cell.method, cell.cell.column, *texts, *fits))
    parts = (f"after {part} of the budget" for part in ("1/4", "1/2", "3/4", "all"))
    head = ("method", "column", *parts, *(["training accuracy at the end, %"] if has_fit else []))
    return Table(f"{metric_text(metric).capitalize()} over the epochs", head, rows)


def _costs(result: Result) -> Table:
    """Return the time of a batch and the memory of the optimizer's state, of the chosen runs."""
    from borat.lab.tasks import find_task  # imports PyTorch, which reading a file does not need

    rows = []
    for cell in result.cells:
        if (config := cell.config) is not None:
            if config.task:
                batches = config.steps or find_task(config.task).steps
            else:
                examples = result.data[cell.cell.column].sizes["train"]
                batches = config.epochs * math.ceil(examples / config.batch_size)
            seconds = float(cell.chosen.seconds.mean())
            costs = (f"{seconds / batches:.3f}", duration(seconds), f"{state_bytes(config):.0f}")
            rows.append((cell.cell.method, cell.cell.column, *costs))
    head = ("method", "column", "seconds per batch", "training", "optimizer state, bytes per parameter")
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


KIND = CurvesSpec
