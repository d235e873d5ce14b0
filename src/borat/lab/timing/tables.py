"""Tables of the benchmark, for the terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import date
from itertools import groupby
from pathlib import Path

from borat.lab.files import write_text
from borat.lab.tables import DASH, Table
from borat.lab.timing.jax_steps import BASE, measure_jax
from borat.lab.timing.launches import measure_kernels, measure_launches
from borat.lab.timing.optimizers import OptimizerCost, Progress, machine, measure_dual, measure_optimizers
from borat.lab.timing.shapes import shape_summary

ProgressBar = Callable[[str], AbstractContextManager[Progress]]
REFERENCES = {"/ fused SGD": "SGD (fused)", "/ default SGD": "SGD", "/ fused AdamW": "AdamW (fused)"}
JAX_REFERENCES = {f"/ {BASE}": BASE}
INTRODUCTION = """\
Cost of an optimizer step, without the forward and backward passes. Times are medians. A column such as "/ fused SGD"
has the ratio to the time of that optimizer, "dual's share" is the part of the time that the dual takes, and
"state / parameters" is the size of the optimizer's state relative to that of the parameters. N is the bundle size.
"""


def measured_tables(models: Sequence[str], rounds: int, progress_bar: ProgressBar) -> list[Table]:
    """Return a table for each model, one for the dual, two for steps on the device, and one for each model in JAX."""
    costs, in_jax = [], []
    for name in models:
        with progress_bar(name) as progress:
            costs += measure_optimizers(name, rounds, progress)
    for name in models:
        with progress_bar(f"{name} in JAX") as progress:
            in_jax += measure_jax(name, rounds, progress)
    return [
        *_cost_tables(costs, "", REFERENCES),
        measure_dual(),
        measure_launches(),
        measure_kernels(),
        *_cost_tables(in_jax, "In JAX, ", JAX_REFERENCES),
    ]


def _cost_tables(costs: Sequence[OptimizerCost], title: str, references: Mapping[str, str]) -> list[Table]:
    """Return a table for each model, with a column for the dual if it was timed."""
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
