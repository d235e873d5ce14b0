"""A grid: every configuration with every seed; nothing is chosen."""

from __future__ import annotations

import math

from borat.lab.metrics import best, lower_is_better, metric_text, value_text
from borat.lab.reproduce.claims import PaperSpec
from borat.lab.reproduce.kinds.table import config_text
from borat.lab.reproduce.run import Result, mean_with_lost
from borat.lab.tables import DASH, Table


class GridSpec(PaperSpec):
    """The mean over the seeds for each configuration of each method."""

    @property
    def fit_metric(self) -> str:
        """The metric on the training data, which shows whether a network interpolates."""
        return f"fit_{self.metric.partition('_')[2]}"

    def first_seeds(self, seeds: tuple[int, ...]) -> tuple[int, ...]:
        return seeds

    def tables(self, result: Result) -> list[Table]:
        measured = [m for m in (self.metric, self.fit_metric) if all(m in cell.runs for cell in result.cells)]
        grids = [_grid(result, metric) for metric in measured]
        return [*grids, _summary(self, result), *self.claims_tables(result)]

    def remarks(self, result: Result) -> list[str]:
        seeds = result.study.seeds
        several = f"the mean over the seeds {', '.join(map(str, seeds))}, or diverged if one of them has"
        fitted = metric_text(self.fit_metric).removesuffix(", %")
        return [
            f"Each cell is {several if len(seeds) > 1 else 'one run'}. It is measured with the weights after the last "
            "epoch, or with their average if the method returns that.",
            f"The {fitted} is measured in the same way, on all training examples with the labels that are trained on.",
        ]


def _grid(result: Result, metric: str) -> Table:
    """Return every cell of the grid: learning rates from left to right, everything else from top to bottom."""
    rates = sorted({config.lr for cell in result.cells for config in cell.cell.configs})
    rows = []
    for cell in result.cells:
        names = [name for name in cell.cell.varied if name != "lr"]
        lines: dict[str, dict[float, str]] = {}
        for setting in cell.settings.itertuples():
            text = setting.status if math.isnan(setting.value) else value_text(metric, getattr(setting, metric))
            lines.setdefault(config_text(setting.config, names), {})[setting.lr] = text
        for others, line in lines.items():
            rows.append((cell.cell.method, others or DASH, *(line.get(lr, DASH) for lr in rates)))
    head = ("method", "settings", *(f"lr {lr:g}" for lr in rates))
    return Table(f"{result.study.heading}: {metric_text(metric)}", head, rows)


def _summary(spec: GridSpec, result: Result) -> Table:
    metric, fit = spec.metric, spec.fit_metric
    rows = []
    for cell in (cell for column in result.columns for cell in result.in_column(column)):
        settings = cell.settings
        usable = settings[result.usable(cell)]
        top = best(settings.index, settings.value.get, metric)
        rows.append((
            cell.cell.method,
            DASH if top is None else value_text(metric, settings.value[top]),
            DASH if top is None or fit not in settings else value_text(fit, settings[fit][top]),
            value_text(metric, mean_with_lost(cell.runs, metric)),
            f"{len(usable)} of {len(settings)}",
            ", ".join(f"{lr:g}" for lr in sorted(set(usable.lr))) or DASH,
            str(cell.runs.value.isna().sum()),
        ))  # fmt: skip
    lost = "infinite" if lower_is_better(metric) else "0"
    fitted = metric_text(fit).removesuffix(", %")
    head = (
        *("method", "best", f"its {fitted}", f"mean (diverged as {lost})"),
        *("usable cells", "usable learning rates", "diverged runs"),
    )
    return Table("Robustness", head, rows)


KIND = GridSpec
