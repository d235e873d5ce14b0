"""Tables that several kinds of experiments have: ours beside the paper's, the choices, the claims."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from borat.lab.config import RunConfig
from borat.lab.metrics import metric_text, unit, value_text
from borat.lab.reproduce.claims import verdicts
from borat.lab.reproduce.spec import Published
from borat.lab.reproduce.training import PaperSpec
from borat.lab.tables import Table

if TYPE_CHECKING:
    from borat.lab.reproduce.run import CellResult, Result

DASH = "-"


def comparison(spec: PaperSpec, result: Result) -> Table:
    columns = result.columns
    head = ["method"]
    for column in columns:
        name = f"{column}, " if len(columns) > 1 else ""
        head += [f"{name}ours", f"{name}paper"] if spec.paper else [column]
    rows: list[tuple[str, ...]] = []
    for method in result.methods:
        row = spec.paper_row(method)
        cells = [(result.cell(method, column), spec.paper.get(row, {}).get(column)) for column in columns]
        label = method if row == method or row not in spec.paper else f"{method} ({row})"
        texts = [
            (_ours_text(spec.metric, ours), paper_text(spec.metric, paper))[: 1 + bool(spec.paper)]
            for ours, paper in cells
        ]
        rows.append((label, *(text for pair in texts for text in pair)))
    for row in spec.reported_rows:
        rows.append((row, *(text for c in columns for text in (DASH, paper_text(spec.metric, spec.paper[row].get(c))))))
    return Table(f"{result.study.heading}: {metric_text(spec.metric)}", tuple(head), rows)


def _ours_text(metric: str, cell: CellResult | None) -> str:
    if cell is None:
        return DASH
    if cell.status != "finished":
        return cell.status
    number = value_text(metric, cell.mean)
    lost = len(cell.chosen) - len(cell.values)
    spread = f" ± {value_text(metric, cell.std, spread=True)}" if cell.std is not None else ""
    return number + spread + (f" ({lost} of {len(cell.chosen)} seeds diverged)" if lost else "")


def paper_text(metric: str, published: Published | None) -> str:
    """Return a number of the paper as it is printed there."""
    if published is None:
        return DASH
    factor = unit(metric)
    return f"{factor * published.mean:g}" + (f" ± {factor * published.std:g}" if published.std is not None else "")


def choices(result: Result) -> Table:
    """Return the chosen configurations, and of how many each was chosen."""
    rows: list[tuple[str, ...]] = []
    for cell in result.cells:
        names = dict.fromkeys((*cell.cell.varied, "lr", "radius", "weight_decay", "batch_size"))
        chosen, score = DASH, DASH
        if cell.config is not None:
            chosen = config_text(cell.config, names)
            score = value_text(result.spec.select_on, cell.chosen.score.iloc[0])
        lost = len(cell.runs) - cell.runs.works.sum()
        rows.append((cell.cell.method, cell.cell.column, chosen, score, str(len(cell.runs)), str(lost)))
    on = result.spec.select_on.replace("_", " ")
    return Table("Chosen configurations", ("method", "column", "chosen", on, "tried", "diverged or failed"), rows)


def config_text(config: RunConfig, names: Iterable[str]) -> str:
    """Return the values of these keys in words, without none and 0."""
    values = {name: value for name in names if (value := getattr(config, name))}
    return ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())


def claims(spec: PaperSpec, result: Result) -> list[Table]:
    """Return a table of the claims and their verdicts, if there are any."""
    found = verdicts(spec.claims, result)
    columns = {verdict.column for verdict in found}
    rows: list[tuple[str, ...]] = []
    for verdict in found:
        place = (verdict.column,) if len(columns) > 1 else ()
        factor = unit(verdict.metric)
        numbers = ", ".join(f"{name} {factor * number:.3g}" for name, number in verdict.numbers.items())
        rows.append((verdict.claim.text, *place, verdict.word, numbers))
    head = ("claim", *(["column"] if len(columns) > 1 else []), "here", "numbers")
    return [Table("What the paper says", head, rows)] if rows else []
