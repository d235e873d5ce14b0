"""The tables of the benchmark, for the terminal and for the documentation."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from borat.lab.files import write_text
from borat.lab.tables import Table
from borat.lab.timing.optimizers import DualCost, OptimizerCost, machine, shape_summary


def tables(costs: list[OptimizerCost], duals: list[DualCost]) -> list[Table]:
    """One table for each model, and one for the dual."""
    head = ("optimizer", "ms per batch", "/ fused SGD", "/ default SGD", "dual's share", "state / parameters")
    result = []
    for model in dict.fromkeys(cost.model for cost in costs):
        rows = [_cost_row(cost) for cost in costs if cost.model == model]
        result.append(Table(f"{model}: {shape_summary(model)}", head, rows))
    dual_head = ("pieces", "from scratch, µs", "one more piece, µs", "quadprog, µs")
    rows = [
        (str(d.pieces), f"{d.from_scratch:.0f}", f"{d.new_piece:.0f}", f"{d.quadprog:.0f}" if d.quadprog else "-")
        for d in duals
    ]
    return [*result, Table("The dual", dual_head, rows)]


def _cost_row(cost: OptimizerCost) -> tuple[str, ...]:
    return (
        cost.optimizer,
        f"{cost.milliseconds:.2f}",
        f"{cost.relative:.2f}",
        f"{cost.relative_to_default:.2f}",
        "-" if cost.dual_share is None else f"{100 * cost.dual_share:.1f} %",
        f"{cost.state:.2f}",
    )


def write(path: Path, report: list[Table], command: str) -> None:
    """Write the tables as Markdown, whole or not at all."""
    text = "\n".join(
        [
            "# Benchmark\n",
            f"`{command}` on {date.today().isoformat()}. {machine()}\n",
            *(table.as_markdown() for table in report),
        ]
    )
    write_text(path, text)
