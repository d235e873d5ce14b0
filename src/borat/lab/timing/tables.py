"""The tables of the benchmark, for the terminal and for the documentation."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from borat.lab.files import write_text
from borat.lab.tables import Table
from borat.lab.timing.launches import TENSORS, Launches
from borat.lab.timing.optimizers import DualCost, OptimizerCost, machine
from borat.lab.timing.shapes import shape_summary


def tables(
    costs: list[OptimizerCost], duals: list[DualCost], launches: list[Launches], kernels: dict[str, int]
) -> list[Table]:
    """One table for each model, one for the dual, and one for steps on the device."""
    head = (
        "optimizer",
        "ms per batch",
        "/ fused SGD",
        "/ default SGD",
        "/ fused AdamW",
        "dual's share",
        "state / parameters",
    )
    result = []
    for model in dict.fromkeys(cost.model for cost in costs):
        rows = [_cost_row(cost) for cost in costs if cost.model == model]
        result.append(Table(f"{model}: {shape_summary(model)}", head, rows))
    dual_head = ("pieces", "solve_dual, µs", "quadprog, µs")
    rows = [(str(d.pieces), f"{d.solve_dual:.0f}", f"{d.quadprog:.0f}" if d.quadprog else "-") for d in duals]
    return [*result, Table("The dual", dual_head, rows), _launch_table(launches), _kernel_table(kernels)]


def _launch_table(launches: list[Launches]) -> Table:
    head = ("optimizer", "on the parameters", "on the bundle's numbers")
    rows: list[tuple[str, ...]] = [(x.optimizer, str(x.on_parameters), str(x.on_numbers)) for x in launches]
    return Table(f"Operations of a step on the device, of {TENSORS} tensors", head, rows)


def _kernel_table(kernels: dict[str, int]) -> Table:
    rows: list[tuple[str, ...]] = [(name, str(count)) for name, count in kernels.items()]
    return Table("Kernels of a compiled step on the device", ("optimizer", "generated kernels"), rows)


def _cost_row(cost: OptimizerCost) -> tuple[str, ...]:
    return (
        cost.optimizer,
        f"{cost.milliseconds:.2f}",
        f"{cost.relative:.2f}",
        f"{cost.relative_to_default:.2f}",
        f"{cost.relative_to_adamw:.2f}",
        "-" if cost.dual_share is None else f"{100 * cost.dual_share:.1f} %",
        f"{cost.state:.2f}",
    )


def write(path: Path, shown: list[Table], command: str) -> None:
    """Write the tables as Markdown, whole or not at all."""
    text = "\n".join(
        [
            "# Benchmark\n",
            f"`{command}` on {date.today().isoformat()}. {machine()}\n",
            *(table.as_markdown() for table in shown),
        ]
    )
    write_text(path, text)
