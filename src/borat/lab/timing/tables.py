"""The tables of the benchmark, for the terminal and for the documentation."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from borat.lab.files import write_text
from borat.lab.tables import DASH, Table
from borat.lab.timing.launches import TENSORS, Launches
from borat.lab.timing.optimizers import DualCost, OptimizerCost, machine
from borat.lab.timing.shapes import shape_summary

REFERENCES = {"/ fused SGD": "SGD (fused)", "/ default SGD": "SGD", "/ fused AdamW": "AdamW (fused)"}


def tables(
    costs: list[OptimizerCost], duals: list[DualCost], launches: list[Launches], kernels: dict[str, int]
) -> list[Table]:
    """Return a table for each model, one for the dual, and two for steps on the device."""
    models = [_cost_table([c for c in costs if c.model == model]) for model in dict.fromkeys(c.model for c in costs)]
    head = ("pieces", "solve_dual, µs", "quadprog, µs")
    rows = [(str(d.pieces), f"{d.solve_dual:.0f}", f"{d.quadprog:.0f}" if d.quadprog else DASH) for d in duals]
    dual = Table("The dual", head, rows)
    head = ("optimizer", "on the parameters", "on the bundle's numbers")
    rows = [(x.optimizer, str(x.on_parameters), str(x.on_numbers)) for x in launches]
    operations = Table(f"Operations of a step on the device, of {TENSORS} tensors", head, rows)
    counts = [(name, str(count)) for name, count in kernels.items()]
    return [
        *models,
        dual,
        operations,
        Table("Kernels of a compiled step on the device", ("optimizer", "generated kernels"), counts),
    ]


def _cost_table(costs: list[OptimizerCost]) -> Table:
    """Return the costs on one model."""
    times = {cost.optimizer: cost.milliseconds for cost in costs}
    rows = []
    for cost in costs:
        ratios = (f"{cost.milliseconds / times[reference]:.2f}" for reference in REFERENCES.values())
        share = DASH if cost.dual_share is None else f"{100 * cost.dual_share:.1f} %"
        rows.append((cost.optimizer, f"{cost.milliseconds:.2f}", *ratios, share, f"{cost.state:.2f}"))
    head = ("optimizer", "ms per batch", *REFERENCES, "dual's share", "state / parameters")
    model = costs[0].model
    return Table(f"{model}: {shape_summary(model)}", head, rows)


def write(path: Path, shown: list[Table], command: str) -> None:
    """Write the tables as Markdown."""
    intro = ["# Benchmark\n", f"`{command}` on {date.today().isoformat()}. {machine()}\n"]
    write_text(path, "\n".join([*intro, *(table.as_markdown() for table in shown)]))
