"""The tables of the benchmark, for the terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from itertools import groupby
from pathlib import Path

from borat.lab.files import write_text
from borat.lab.tables import DASH, Table
from borat.lab.timing.jax_steps import BASE
from borat.lab.timing.launches import TENSORS, Launches
from borat.lab.timing.optimizers import DualCost, OptimizerCost, machine
from borat.lab.timing.shapes import shape_summary

REFERENCES = {"/ fused SGD": "SGD (fused)", "/ default SGD": "SGD", "/ fused AdamW": "AdamW (fused)"}
JAX_REFERENCES = {f"/ {BASE}": BASE}
INTRODUCTION = """\
Cost of an optimizer step, without the forward and backward passes. Times are medians. A column such as "/ fused SGD"
has the ratio to the time of that optimizer, "dual's share" is the part of the time that the dual takes, and
"state / parameters" is the size of the optimizer's state relative to that of the parameters. N is the bundle size.
"""


def tables(
    costs: Sequence[OptimizerCost],
    duals: Sequence[DualCost],
    launches: Sequence[Launches],
    kernels: Mapping[str, int],
    in_jax: Sequence[OptimizerCost],
) -> list[Table]:
    """Return a table for each model, one for the dual, two for steps on the device, and one for each model in JAX."""
    times = [(str(d.pieces), f"{d.solve_dual:.0f}", f"{d.quadprog:.0f}" if d.quadprog else DASH) for d in duals]
    operations = [(x.optimizer, str(x.on_parameters), str(x.on_numbers)) for x in launches]
    head = ("optimizer", "on the parameters", "on the bundle's numbers")
    counts = [(name, str(count)) for name, count in kernels.items()]
    return [
        *_cost_tables(costs, "", REFERENCES),
        Table("The dual", ("pieces", "solve_dual, µs", "quadprog, µs"), times),
        Table(f"Operations of a step on the device, for {TENSORS} tensors", head, operations),
        Table("Kernels of a compiled step on the device", ("optimizer", "generated kernels"), counts),
        *_cost_tables(in_jax, "In JAX, ", JAX_REFERENCES),
    ]


def _cost_tables(costs: Sequence[OptimizerCost], title: str, references: Mapping[str, str]) -> list[Table]:
    """Return a table for each model; the dual has a column if it was timed."""
    is_timed = any(cost.dual_share is not None for cost in costs)
    head = ("optimizer", "ms per batch", *references, *(["dual's share"] if is_timed else []), "state / parameters")
    found = []
    for model, group in groupby(costs, lambda cost: cost.model):
        shown = list(group)
        times = {cost.optimizer: cost.milliseconds for cost in shown}
        rows = []
        for cost in shown:
            ratios = (f"{cost.milliseconds / times[reference]:.2f}" for reference in references.values())
            share = DASH if cost.dual_share is None else f"{100 * cost.dual_share:.1f} %"
            shares = [share] if is_timed else []
            rows.append((cost.optimizer, f"{cost.milliseconds:.2f}", *ratios, *shares, f"{cost.state:.2f}"))
        found.append(Table(f"{title}{model}: {shape_summary(model)}", head, rows))
    return found


def write(path: Path, shown: Sequence[Table], command: str) -> None:
    """Write the tables as Markdown."""
    source = f"Measured by `{command}` on {date.today().isoformat()}: {machine()}.\n"
    write_text(path, "\n".join(["# Benchmarks\n", INTRODUCTION, source, *(table.as_markdown() for table in shown)]))
