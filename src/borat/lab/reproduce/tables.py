"""The tables of a result, ours beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from borat.lab.config import RunConfig
from borat.lab.metrics import best, lower_is_better, metric_text, unit, value_text
from borat.lab.reproduce.claims import Verdict, check_claims, is_near_best, mean_of_all
from borat.lab.reproduce.run import CellResult, Result
from borat.lab.reproduce.spec import Published, Spec, Study
from borat.lab.store.records import configs_of, curve
from borat.lab.tables import Table
from borat.lab.timing.epochs import EpochTime
from borat.lab.timing.runtime import Runtime

DASH = "-"
FIT = "fit_accuracy"
SECONDS = "seconds an epoch"
"""The column of run times."""


def tables(result: Result) -> list[Table]:
    """What there is to show, the most important first."""
    spec = result.spec
    if spec.kind == "grid":
        shown = [_grid(result, metric) for metric in (spec.metric, fit_metric(spec)) if _is_measured(result, metric)]
        shown.append(_summary(result))
    else:
        shown = [_comparison(result), _choices(result)]
    if spec.kind == "curves":
        shown.append(_curves(result))
    verdicts = check_claims(result)
    return [*shown, _claims(verdicts)] if verdicts else shown


def fit_metric(spec: Spec) -> str:
    """What an experiment measures, on the training data: it tells whether a network interpolates."""
    return f"fit_{spec.metric.partition('_')[2]}"


def _is_measured(result: Result, metric: str) -> bool:
    return all(metric in cell.runs for cell in result.cells)


def _comparison(result: Result) -> Table:
    spec, columns = result.spec, result.columns
    head = ["method"]
    for column in columns:
        name = f"{column}, " if len(columns) > 1 else ""
        head += [f"{name}ours", f"{name}paper"] if spec.paper else [column]
    rows: list[tuple[str, ...]] = []
    for method in result.methods:
        row = paper_row(spec, method)
        cells = [(result.cell(method, column), spec.paper.get(row, {}).get(column)) for column in columns]
        label = method if row == method or row not in spec.paper else f"{method} ({row})"
        texts = [
            (ours_text(spec, ours), paper_text(spec.metric, paper))[: 1 + bool(spec.paper)] for ours, paper in cells
        ]
        rows.append((label, *(text for pair in texts for text in pair)))
    for row in reported_rows(spec):
        rows.append((row, *(text for c in columns for text in (DASH, paper_text(spec.metric, spec.paper[row].get(c))))))
    return Table(f"{result.study.heading}: {metric_text(spec.metric)}", tuple(head), rows)


def paper_row(spec: Spec, method: str) -> str:
    return next((entry.paper or entry.name for entry in spec.methods if entry.name == method), method)


def reported_rows(spec: Spec) -> list[str]:
    """Rows of the paper's table that it quotes from others, and that nothing here is run for."""
    run = {paper_row(spec, method.name) for method in spec.methods}
    return [row for row in spec.paper if row not in run]


def ours_text(spec: Spec, cell: CellResult | None) -> str:
    if cell is None:
        return DASH
    if cell.status != "finished":
        return cell.status
    number = value_text(spec.metric, cell.mean)
    lost = len(cell.chosen) - len(cell.values)
    spread = f" ± {value_text(spec.metric, cell.std, spread=True)}" if cell.std is not None else ""
    return number + spread + (f" ({lost} of {len(cell.chosen)} seeds diverged)" if lost else "")


def paper_text(metric: str, published: Published | None) -> str:
    """As it is printed there."""
    if published is None:
        return DASH
    factor = unit(metric)
    return f"{factor * published.mean:g}" + (f" ± {factor * published.std:g}" if published.std is not None else "")


def _choices(result: Result) -> Table:
    """What was chosen, and of how many."""
    rows: list[tuple[str, ...]] = []
    for cell in result.cells:
        names = dict.fromkeys((*cell.cell.varied, "lr", "radius", "weight_decay", "batch_size"))
        chosen, score = DASH, DASH
        if cell.config is not None:
            chosen = settings_text(cell.config, names)
            score = value_text(result.spec.select_on, cell.chosen.score.iloc[0])
        lost = len(cell.runs) - cell.runs.works.sum()
        rows.append((cell.cell.method, cell.cell.column, chosen, score, str(len(cell.runs)), str(lost)))
    on = result.spec.select_on.replace("_", " ")
    return Table("Chosen configurations", ("method", "column", "chosen", on, "tried", "diverged or failed"), rows)


def settings_text(config: RunConfig, names: Iterable[str]) -> str:
    """The settings that are there: none and 0 say nothing."""
    values = {name: value for name in names if (value := getattr(config, name))}
    return ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())


def _grid(result: Result, metric: str) -> Table:
    """Every cell of the grid: learning rates from left to right, everything else from top to bottom."""
    rates = sorted({config.lr for cell in result.cells for config in cell.cell.configs})
    rows: list[tuple[str, ...]] = []
    for cell in result.cells:
        names = [name for name in cell.cell.varied if name != "lr"]
        lines: dict[str, dict[float, str]] = {}
        table = cell.settings
        for config, value, works, status in zip(
            configs_of(table), table[metric], table.works, table.status, strict=True
        ):
            text = value_text(metric, value) if works else status
            lines.setdefault(settings_text(config, names), {})[config.lr] = text
        for settings, line in lines.items():
            rows.append((cell.cell.method, settings or DASH, *(line.get(lr, DASH) for lr in rates)))
    head = ("method", "settings", *(f"lr {lr:g}" for lr in rates))
    return Table(f"{result.study.heading}: {metric_text(metric)}", head, rows)


def _summary(result: Result) -> Table:
    metric, fit = result.spec.metric, fit_metric(result.spec)
    rows: list[tuple[str, ...]] = []
    for column in result.columns:
        cells = [cell for cell in result.cells if cell.cell.column == column]
        for cell in cells:
            settings = cell.settings
            usable = settings[is_near_best(settings, metric, cells)]
            values = settings.value[settings.works]
            top = best(values.index, values.get, metric)
            rows.append((
                cell.cell.method,
                DASH if top is None else value_text(metric, values[top]),
                DASH if top is None or fit not in settings else value_text(fit, settings[fit][top]),
                value_text(metric, mean_of_all(cell.runs, metric)),
                f"{len(usable)} of {len(settings)}",
                ", ".join(f"{lr:g}" for lr in sorted(set(usable.lr))) or DASH,
                str((~cell.runs.works).sum()),
            ))  # fmt: skip
    lost = "infinite" if lower_is_better(metric) else "0"
    fitted = metric_text(fit).removesuffix(", %")
    head = (
        *("method", "best", f"its {fitted}", f"mean (diverged as {lost})"),
        *("usable cells", "usable learning rates", "diverged runs"),
    )
    return Table("Robustness", head, rows)


def _curves(result: Result) -> Table:
    """The chosen runs' value along the way."""
    rows: list[tuple[str, ...]] = []
    for cell in result.cells:
        values = curve(cell.chosen.history.iloc[0], result.spec.metric) if len(cell.chosen) else []
        places = [max(math.ceil(len(values) * part / 4) - 1, 0) for part in (1, 2, 3, 4)]
        texts = [value_text(result.spec.metric, values[place]) if values else DASH for place in places]
        fit = cell.chosen[FIT].mean() if FIT in cell.chosen else math.nan
        rows.append((cell.cell.method, cell.cell.column, *texts, DASH if math.isnan(fit) else value_text(FIT, fit)))
    parts = (f"after {part} of the budget" for part in ("1/4", "1/2", "3/4", "all"))
    head = ("method", "column", *parts, "training accuracy at the end, %")
    return Table(f"{metric_text(result.spec.metric).capitalize()} over the epochs", head, rows)


def _claims(verdicts: Sequence[Verdict]) -> Table:
    columns = {verdict.column for verdict in verdicts}
    rows: list[tuple[str, ...]] = []
    for verdict in verdicts:
        place = (verdict.column,) if len(columns) > 1 else ()
        factor = unit(verdict.metric)
        numbers = ", ".join(f"{name} {factor * number:.3g}" for name, number in verdict.numbers.items())
        rows.append((verdict.claim.text, *place, verdict.word, numbers))
    return Table("What the paper says", ("claim", *(["column"] if len(columns) > 1 else []), "here", "numbers"), rows)


def runtime_table(study: Study, runtime: Runtime, times: Sequence[EpochTime]) -> Table:
    reference = next(t for t in times if t.name == runtime.reference)
    published = {row: cells[SECONDS].mean for row, cells in study.spec.paper.items()}
    rows: list[tuple[str, ...]] = []
    for t in times:
        paper = published.get(t.name)
        rows.append((
            t.name,
            f"{t.seconds / reference.seconds:.3f}",
            DASH if paper is None else f"{paper / published[runtime.reference]:.2f}",
            f"{t.seconds:.1f}",
            DASH if paper is None else f"{paper:g}",
            f"{t.steps:.1f}",
            f"{t.steps / reference.steps:.2f}",
        ))  # fmt: skip
    head = (
        "optimizer",
        "ratio, ours",
        "ratio, paper",
        "epoch, s, ours",
        "epoch, s, paper",
        "optimizer, s",
        "its ratio",
    )
    return Table(study.heading, head, rows)
