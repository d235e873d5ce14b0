"""Verdicts on the paper's claims: whether our results support them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from borat.lab.metrics import lower_is_better
from borat.lab.reproduce.spec import Claim
from borat.lab.robustness import as_accuracy, best_accuracy, is_usable
from borat.lab.store.experiment import CheckedClaim
from borat.lab.store.records import curve

if TYPE_CHECKING:
    import pandas as pd

    from borat.lab.reproduce.run import CellResult, Result


@dataclass(frozen=True)
class Verdict:
    """A claim in one column, with the numbers it is about."""

    claim: Claim
    column: str
    numbers: Mapping[str, float]
    supported: bool | None
    """None where something it is about was not run."""

    metric: str = ""
    """Of the numbers; empty where they are counts."""

    @property
    def word(self) -> str:
        return {True: "supported", False: "not supported", None: "not checked"}[self.supported]

    @property
    def record(self) -> CheckedClaim:
        numbers = {name: number if math.isfinite(number) else None for name, number in self.numbers.items()}
        return CheckedClaim(
            text=self.claim.text, column=self.column, verdict=self.word, numbers=numbers, metric=self.metric
        )


def verdicts(claims: Sequence[Claim], result: Result) -> list[Verdict]:
    """Check each claim in each of its columns, but for claims about the other scale."""
    return [
        verdict_on(claim, column, result)
        for claim in claims
        if claim.scale in ("", result.study.scale)
        for column in result.columns
        if not claim.columns or column in claim.columns
    ]


def verdict_on(claim: Claim, column: str, result: Result) -> Verdict:
    cells = {c.cell.method: c for c in result.cells if c.cell.column == column}
    lower = lower_is_better(claim.metric or result.spec.metric)
    metric = "" if claim.statistic == "usable" else claim.metric or result.spec.metric
    found = (
        (name, _statistic(claim, result.spec.metric, cells[name], list(cells.values())))
        for name in claim.names
        if name in cells
    )
    numbers = {name: number for name, number in found if number is not None}
    if len(numbers) < len(claim.names):
        return Verdict(claim, column, numbers, None, metric)
    bounds = [
        math.isfinite(numbers[name])
        and (claim.at_least is None or numbers[name] >= claim.at_least)
        and (claim.at_most is None or numbers[name] <= claim.at_most)
        for name in claim.methods
    ]
    return Verdict(claim, column, numbers, all(bounds) and _in_order(claim, numbers, lower), metric)


def _in_order(claim: Claim, numbers: Mapping[str, float], lower: bool) -> bool:
    """Better comes first. Without a margin or a factor, ties are allowed but not between the first and the last."""
    sign = -1.0 if lower and claim.statistic in ("value", "best", "mean") else 1.0
    groups = [[sign * _or_worst(numbers[name], sign) for name in group] for group in claim.order]
    if not groups:
        return True
    for better, worse in pairwise(groups):
        rival = max(worse) / claim.factor if sign < 0 else max(worse) * claim.factor
        if min(better) == -math.inf or not min(better) >= rival + claim.margin:
            return False
    return claim.margin != 0.0 or claim.factor != 1.0 or min(groups[0]) > max(groups[-1])


def _or_worst(number: float, sign: float) -> float:
    """A method without a number is worse than any other."""
    return -sign * math.inf if math.isnan(number) else number


def _statistic(claim: Claim, metric: str, cell: CellResult, cells: Sequence[CellResult]) -> float | None:
    """None where nothing was run that the claim is about."""
    if claim.metric or claim.epoch:
        return _recorded(claim.metric or metric, claim.epoch, cell)
    if claim.statistic == "value":
        return cell.mean
    settings = _where(claim, cell.settings)
    if settings.empty:
        return None
    if claim.statistic == "best":
        values = settings.value[settings.works]
        return float(values.min() if lower_is_better(metric) else values.max())
    if claim.statistic == "mean":
        return mean_of_all(_where(claim, cell.runs), metric)
    return float(is_near_best(settings, metric, cells).sum())


def _where(claim: Claim, runs: pd.DataFrame) -> pd.DataFrame:
    for key, values in claim.where.items():
        runs = runs[runs[key].isin(values)]
    return runs


def mean_of_all(runs: pd.DataFrame, metric: str) -> float:
    """A run that diverged has an accuracy of 0, or an infinite loss."""
    worst = math.inf if lower_is_better(metric) else 0.0
    return float(runs.value.where(runs.works, worst).mean())


def _recorded(metric: str, epoch: int, cell: CellResult) -> float:
    """The mean over the chosen runs after an epoch, or after the last."""
    curves = [curve(history, metric) for history in cell.chosen.history[cell.chosen.works]]
    if not curves or min(map(len, curves)) < max(epoch, 1):
        return math.nan
    return statistics.fmean(values[epoch - 1] for values in curves)


def is_near_best(settings: pd.DataFrame, metric: str, cells: Sequence[CellResult]) -> pd.Series:
    """Return the settings that are usable: near the best of all methods in the column."""

    def accuracies(settings: pd.DataFrame) -> pd.Series:
        values = settings.value.where(settings.works)
        return values.map(as_accuracy) if lower_is_better(metric) else values

    top = best_accuracy(accuracy for cell in cells for accuracy in accuracies(cell.settings))
    return accuracies(settings).map(lambda accuracy: is_usable(accuracy, top))
