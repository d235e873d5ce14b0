"""Curves: a table, and the metric of the chosen runs over the epochs."""

from __future__ import annotations

import math

from borat.lab.metrics import metric_text, value_text
from borat.lab.reproduce.kinds.table import TableSpec
from borat.lab.reproduce.run import Result
from borat.lab.store.records import curve
from borat.lab.tables import DASH, Table

FIT = "fit_accuracy"


class CurvesSpec(TableSpec):
    """The best configuration of each method, and its metric over the epochs."""

    def tables(self, result: Result) -> list[Table]:
        comparison, choices, *claims = super().tables(result)
        return [comparison, choices, _curves(result), *claims]


def _curves(result: Result) -> Table:
    """Return the metric over the epochs, or the one that runs are chosen by if that one is measured at the end."""
    metric = result.spec.select_on if result.spec.metric.startswith("test") else result.spec.metric
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


KIND = CurvesSpec
