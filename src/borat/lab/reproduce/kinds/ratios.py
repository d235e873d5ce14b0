"""Ratios: the score of each method on each task over that of a tuned reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from borat.lab.config import RunConfig
from borat.lab.files import pick
from borat.lab.metrics import lower_is_better
from borat.lab.reproduce.ratios import DASH, NEAR, PLAIN, Row, ratio_tables
from borat.lab.reproduce.training import TrainingSpec
from borat.lab.tables import Table

if TYPE_CHECKING:
    from borat.lab.reproduce.run import CellResult, Result


class RatiosSpec(TrainingSpec):
    """All methods on all tasks, plain and under conditions: a shifted loss or clipped gradients."""

    metric: str = "test_loss"
    select_on: str = "validation_loss"
    reference: str
    """The method that all others are compared with."""

    @model_validator(mode="after")
    def _check_reference(self) -> Self:
        pick("reference", self.reference, [method.name for method in self.methods])
        for name in (self.metric, self.select_on):
            if not lower_is_better(name):
                raise ValueError(f"ratios are of losses, got the metric {name!r}")
        return self

    def tables(self, result: Result) -> list[Table]:
        cells = {(cell.cell.method, cell.cell.column): cell for cell in result.cells}
        rows = []
        for name in result.methods:
            losses = {task: _losses(cells[name, task]) for task in result.columns if (name, task) in cells}
            config = next(cell.cell.configs[0] for cell in result.cells if cell.cell.method == name)
            rows.append(Row(name.partition(":")[0], condition_of(config), losses))
        return [*ratio_tables(result.study.heading, rows, self.reference), _rates(result)]

    def remarks(self, result: Result) -> list[str]:
        return [
            f"A ratio is a method's score over that of {self.reference}, plain; each is a mean over the seeds "
            f"{', '.join(map(str, result.study.seeds))}. Less is better; where more is better, as for a return, the "
            "scores are their reciprocals. A run that diverged has an infinite ratio.",
            f"Within {100 * (NEAR - 1):.0f} % are the tasks with a ratio of at most {NEAR:g}.",
            "Of several learning rates, the one with the best validation score is chosen with the first seed.",
            "A method that does not see the loss is the same where the loss is shifted, and is left out there.",
        ]

    def numbers(self, result: Result, tables: Sequence[Table]) -> dict[str, Any]:
        shown = [{"title": t.title, "head": list(t.head), "rows": [list(row) for row in t.rows]} for t in tables]
        return {"tables": shown}


def _rates(result: Result) -> Table:
    """Return the chosen learning rates of methods that try several."""
    chosen = {(c.cell.method, c.cell.column): c.config for c in result.cells if len(c.cell.configs) > 1}
    methods = [method for method in result.methods if any(method == name for name, _ in chosen)]
    lines: list[tuple[str, ...]] = []
    for task in result.columns:
        configs = [chosen.get((method, task)) for method in methods]
        lines.append((task, *(DASH if config is None else f"{config.lr:g}" for config in configs)))
    return Table("Chosen learning rates", ("task", *methods), lines)


def _losses(cell: CellResult) -> list[float]:
    """Return the losses of the chosen configuration; those that diverged, or of which none worked, are infinite."""
    if not len(cell.chosen):
        return [math.inf]
    return [
        float(value) if works else math.inf for value, works in zip(cell.chosen.value, cell.chosen.works, strict=True)
    ]


def condition_of(config: RunConfig) -> str:
    """Return the condition of a run in words.

    >>> condition_of(RunConfig(task="vae")), condition_of(RunConfig(task="vae", shift=-3.0, clip=0.1))
    ('plain', 'loss - 3; gradients clipped at 0.1')
    """
    shift = f"loss {'-' if config.shift < 0.0 else '+'} {abs(config.shift):g}" if config.shift else ""
    clip = f"gradients clipped at {config.clip:g}" if config.clip else ""
    return "; ".join(filter(None, (shift, clip))) or PLAIN


KIND = RatiosSpec
