"""The tables of the benchmark, for the terminal and for the documentation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path

from rich.table import Table as RichTable

from borat.lab.bench import DualCost, OptimizerCost, machine, shape_summary
from borat.lab.store import write_atomically


@dataclass(frozen=True)
class Table:
    """A title, column heads and rows of text."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def as_rich(self) -> RichTable:
        table = RichTable(title=self.title, title_justify="left")
        for i, name in enumerate(self.head):
            table.add_column(name, justify="right" if i else "left")
        for row in self.rows:
            table.add_row(*row)
        return table

    def as_markdown(self) -> str:
        rule = "|".join(["---", *["---:"] * (len(self.head) - 1)])
        lines = [f"### {self.title}", "", f"| {' | '.join(self.head)} |", f"|{rule}|"]
        return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in self.rows)]) + "\n"


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
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
