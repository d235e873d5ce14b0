"""The paper's numbers and claims, and verdicts on the claims."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from borat.lab.files import pick
from borat.lab.metrics import lower_is_better, unit
from borat.lab.reproduce.run import CellResult, Result, mean_with_lost
from borat.lab.reproduce.spec import PaperTable
from borat.lab.reproduce.training import MetricName, TrainingSpec
from borat.lab.store.records import curve
from borat.lab.strict import Listed, StrictModel
from borat.lab.tables import Table

WORDS = {True: "supported", False: "not supported", None: "not checked"}


class Claim(StrictModel):
    """A sentence of the paper about its results, in a form that can be checked.

    The ``statistic`` of a method is its ``value`` in the table; in a grid it is the ``best`` or the ``mean`` over the
    cells, or the number of ``usable`` cells (see :mod:`borat.lab.robustness`). ``where`` keeps only the cells with
    these values of these keys. A cell is the mean over the seeds, and not usable if one diverged. In a mean over cells,
    a run that diverged has an accuracy of 0, or an infinite loss.

    In ``order``, the worst method of each group must be at least as good as the best of the next group, by ``margin``
    or ``factor``; without these, the first group must be better than the last. Alternatively, each method must satisfy
    ``at_least`` and ``at_most``. Numbers are in the units of the paper: accuracies are in percent.

    A claim about another ``metric`` than the table's, or about an earlier ``epoch`` than the last, takes the value from
    the record of that epoch, counted from 1.
    """

    text: str
    statistic: Literal["value", "best", "mean", "usable"] = "value"
    order: Listed[str | Listed[str]] = ()
    """Methods or groups of methods, from the best to the worst."""
    methods: Listed[str] = ()
    columns: Listed[str] = ()
    where: dict[str, list[Any]] = Field(default_factory=dict)
    margin: float = 0.0
    factor: float = 1.0
    at_least: float = -math.inf
    at_most: float = math.inf
    scale: str = ""
    """The only scale at which the claim can be checked; empty for both."""
    metric: MetricName = ""
    epoch: int = 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.epoch < 0 or ((self.epoch or self.metric) and self.statistic != "value"):
            raise ValueError(f"the claim {self.text!r} needs the statistic value and an epoch of at least 1")
        bounded = self.methods and (self.at_least, self.at_most) != (-math.inf, math.inf)
        if not (len(self.order) > 1 or bounded):
            raise ValueError(f"the claim {self.text!r} needs an order, or methods and a bound")
        return self

    @property
    def groups(self) -> list[tuple[str, ...]]:
        return [(group,) if isinstance(group, str) else group for group in self.order]

    @property
    def names(self) -> tuple[str, ...]:
        return self.methods + tuple(name for group in self.groups for name in group)


class PaperSpec(TrainingSpec):
    """An experiment of the paper: its published numbers beside ours, and whether its claims hold here."""

    paper: PaperTable = Field(default_factory=dict)
    claims: Listed[Claim] = ()

    @model_validator(mode="after")
    def _check_paper(self) -> Self:
        for claim in self.claims:
            self.check_places(claim.names, claim.columns)
        for table in self.methods:
            if table.paper:
                pick("row of the paper", table.paper, self.paper)
        for column in (name for row in self.paper.values() for name in row):
            pick("column of the paper", column, self.column_names)
        return self

    def paper_row(self, method: str) -> str:
        """Return the row of the paper's table that a method is compared with."""
        return next((table.paper or table.name for table in self.methods if table.name == method), method)

    @property
    def quoted_rows(self) -> list[str]:
        """Rows of the paper's table that it quotes from others and that are not run here."""
        run = {self.paper_row(name) for name in self.method_names}
        return [row for row in self.paper if row not in run]

    def claims_tables(self, result: Result) -> list[Table]:
        """Return a table of the claims and their verdicts, if there are any."""
        found = verdicts(self.claims, result)
        several = len({verdict.column for verdict in found}) > 1
        rows = []
        for verdict in found:
            numbers = ", ".join(f"{name} {number:.3g}" for name, number in verdict.numbers.items())
            rows.append((verdict.claim.text, *([verdict.column] if several else []), WORDS[verdict.supported], numbers))
        head = ("claim", *(["column"] if several else []), "here", "numbers")
        return [Table("What the paper says", head, rows)] if rows else []


@dataclass(frozen=True)
class Verdict:
    """A claim in one column, and the numbers that decide it."""

    claim: Claim
    column: str
    numbers: Mapping[str, float]
    """By method, in the units of the paper."""
    supported: bool | None
    """None if one of its methods or settings was not run."""


def verdicts(claims: Sequence[Claim], result: Result) -> list[Verdict]:
    """Check each claim in each of its columns, except for claims about the other scale."""
    return [
        verdict_on(claim, column, result)
        for claim in claims
        if claim.scale in ("", result.study.scale)
        for column in result.columns
        if not claim.columns or column in claim.columns
    ]


def verdict_on(claim: Claim, column: str, result: Result) -> Verdict:
    """Check a claim in one column."""
    metric = claim.metric or result.spec.metric
    is_count = claim.statistic == "usable"
    found = {name: result.cell(name, column) for name in claim.names}
    statistics = {name: _statistic(claim, metric, cell, result) for name, cell in found.items() if cell is not None}
    factor = 1.0 if is_count else unit(metric)
    numbers = {name: factor * number for name, number in statistics.items() if number is not None}
    if len(numbers) < len(found):
        return Verdict(claim, column, numbers, None)
    bounded = all(
        math.isfinite(numbers[name]) and claim.at_least <= numbers[name] <= claim.at_most for name in claim.methods
    )
    in_order = _in_order(claim, numbers, lower=lower_is_better(metric) and not is_count)
    return Verdict(claim, column, numbers, bounded and in_order)


def _in_order(claim: Claim, numbers: Mapping[str, float], *, lower: bool) -> bool:
    """True if better groups come first. Without margin and factor, neighbours may tie, but not the first and last."""
    sign = -1.0 if lower else 1.0
    groups = [[-math.inf if math.isnan(x := numbers[name]) else sign * x for name in group] for group in claim.groups]
    for better, worse in pairwise(groups):
        rival = max(worse) / claim.factor if lower else max(worse) * claim.factor
        if min(better) == -math.inf or not min(better) >= rival + claim.margin:
            return False
    return not groups or claim.margin != 0.0 or claim.factor != 1.0 or min(groups[0]) > max(groups[-1])


def _statistic(claim: Claim, metric: str, cell: CellResult, result: Result) -> float | None:
    """Return the statistic of a method, or None if no run matches ``where``."""
    if claim.metric or claim.epoch:  # the mean over the chosen runs after that epoch, or after the last
        curves = [curve(history, metric) for history in cell.chosen.history[cell.chosen.value.notna()]]
        known = curves and min(map(len, curves)) >= max(claim.epoch, 1)
        return statistics.fmean(values[claim.epoch - 1] for values in curves) if known else math.nan
    if claim.statistic == "value":
        return cell.result.mean if cell.result else math.nan
    settings, runs = cell.settings, cell.runs
    for key, values in claim.where.items():
        settings, runs = (table[table[key].isin(values)] for table in (settings, runs))
    if settings.empty:
        return None
    if claim.statistic == "best":
        return float(settings.value.min() if lower_is_better(metric) else settings.value.max())
    if claim.statistic == "mean":
        return mean_with_lost(runs, metric)
    return float(result.usable(cell)[settings.index].sum())
