"""A table: the best configuration of each method, chosen on validation, beside the paper's number."""

from __future__ import annotations

from collections.abc import Iterable

from borat.lab.config import RunConfig
from borat.lab.metrics import metric_text, unit, value_text
from borat.lab.reproduce.claims import PaperSpec
from borat.lab.reproduce.run import CellResult, Result
from borat.lab.reproduce.spec import Published
from borat.lab.tables import DASH, Table

OF_BEST_EPOCH = " (the authors' code tests those of the best epoch)"


class TableSpec(PaperSpec):
    """The best configuration of each method, with all seeds."""

    def tables(self, result: Result) -> list[Table]:
        return [comparison(self, result), choices(result), *self.claims_tables(result)]

    def remarks(self, result: Result) -> list[str]:
        on, seeds = self.select_on.replace("_", " "), result.study.seeds
        is_ours = "not in the paper" in self.source
        chosen = (
            f"The configuration with the best {on} after its last epoch, with the first seed, is chosen. Results are "
            f"measured with the weights of the last epoch{'' if is_ours else OF_BEST_EPOCH}."
        )
        spread = f"± is the standard deviation over the seeds {', '.join(map(str, seeds))}."
        has_choice = not is_ours or any(len(cell.runs) > 1 for cell in result.cells)
        return [*([chosen] if has_choice else []), *([spread] if len(seeds) > 1 else [])]


def comparison(spec: PaperSpec, result: Result) -> Table:
    """Return our numbers, and those of the paper if it has any."""
    kinds = ("ours", "published" if "not in the paper" in spec.source else "paper") if spec.paper else ("ours",)
    head = ["method"]
    rows = [[_label(spec, method)] for method in result.methods] + [[row] for row in spec.quoted_rows]
    for column in result.columns:
        name = f"{column}, " if len(result.columns) > 1 else ""
        head += [f"{name}{kind}" for kind in kinds] if spec.paper else [column]
        for method, row in zip((*result.methods, *spec.quoted_rows), rows, strict=True):
            paper = spec.paper.get(spec.paper_row(method), {}).get(column)
            row += (ours_text(spec.metric, result.cell(method, column)), paper_text(paper))[: len(kinds)]
    return Table(f"{result.study.heading}: {_measure(spec, result)}", tuple(head), [tuple(row) for row in rows])


def _measure(spec: PaperSpec, result: Result) -> str:
    """Return the name of the numbers in the table; each task has its own."""
    from borat.lab.tasks import locate  # imports PyTorch, which reading a file does not need

    tasks = dict.fromkeys(cell.cell.configs[0].task for cell in result.cells)
    return "; ".join(locate(task).metric if task else metric_text(spec.metric) for task in tasks)


def _label(spec: PaperSpec, method: str) -> str:
    row = spec.paper_row(method)
    return method if row == method or row not in spec.paper else f"{method} ({row})"


def ours_text(metric: str, cell: CellResult | None) -> str:
    if cell is None:
        return DASH
    if (result := cell.result) is None:
        return cell.status
    lost = len(cell.chosen) - result.runs
    spread = f" ± {value_text(metric, result.std, spread=True)}" if result.std is not None else ""
    return (
        number_text(metric, result.mean) + spread + (f" ({lost} of {len(cell.chosen)} seeds diverged)" if lost else "")
    )


def number_text(metric: str, value: float) -> str:
    """Return the text of a measurement, with four digits of a loss of at least 1: methods may differ in the last.

    >>> number_text("test_loss", 87.0449), number_text("test_loss", 0.7654), number_text("test_accuracy", 0.7654)
    ('87.04', '0.765', '76.5')
    """
    if unit(metric) == 1.0 and 1.0 <= abs(value) < 1000.0:
        return f"{value:.3f}" if abs(value) < 10.0 else f"{value:.2f}"
    return value_text(metric, value)


def paper_text(published: Published | None) -> str:
    if published is None:
        return DASH
    return f"{published.mean:g}" + (f" ± {published.std:g}" if published.std is not None else "")


def choices(result: Result) -> Table:
    """Return the chosen configurations, and how many were tried."""
    rows = []
    for cell in result.cells:
        names = dict.fromkeys((*cell.cell.varied, "lr", "radius", "weight_decay", "batch_size"))
        if cell.cell.configs[0].task:
            names.pop("batch_size")  # that of a task is its own
        chosen, score = DASH, DASH
        if cell.config is not None:
            chosen = config_text(cell.config, names)
            score = number_text(result.spec.select_on, cell.chosen.score.iloc[0])
        lost = cell.runs.value.isna().sum()
        rows.append((cell.cell.method, cell.cell.column, chosen, score, str(len(cell.runs)), str(lost)))
    on = result.spec.select_on.replace("_", " ")
    return Table("Chosen configurations", ("method", "column", "chosen", on, "tried", "diverged or failed"), rows)


def config_text(config: RunConfig, names: Iterable[str]) -> str:
    """Return the keys and their values as text, without none and 0."""
    values = {name: value for name in names if (value := getattr(config, name))}
    return ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())


KIND = TableSpec
