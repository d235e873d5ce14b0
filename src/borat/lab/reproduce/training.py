"""Common parts of experiments that train: their runs, their page, the paper's numbers and claims."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from borat.lab.config import RunConfig
from borat.lab.files import pick
from borat.lab.metrics import unit
from borat.lab.reproduce.claims import verdicts
from borat.lab.reproduce.columns import ColumnsSpec
from borat.lab.reproduce.page import as_markdown, duration
from borat.lab.reproduce.spec import Claim, Means, Published, ResultPage, Study
from borat.lab.strict import Listed
from borat.lab.tables import Table

if TYPE_CHECKING:
    from borat.lab.reproduce.run import Result


class TrainingSpec(ColumnsSpec):
    """An experiment whose result is training runs. A kind says which tables and remarks its page has."""

    @abstractmethod
    def tables(self, result: Result) -> list[Table]:
        """Return the tables, the most important first."""

    @abstractmethod
    def remarks(self, result: Result) -> list[str]:
        """Return sentences that say how to read the tables."""

    @abstractmethod
    def numbers(self, result: Result, tables: Sequence[Table]) -> dict[str, Any]:
        """Return what ``borat report`` shows beside the runs: further keys of an :class:`Experiment`."""

    def missing(self, study: Study, folder: Path) -> list[RunConfig]:
        from borat.lab.reproduce.run import missing_runs  # with PyTorch, which nothing above needs

        return missing_runs(self, study, folder)

    def run(self, study: Study, folder: Path, means: Means) -> Result:
        from borat.lab.reproduce.run import reproduce

        return reproduce(self, study, folder, means)

    def page(self, result: Result, command: str, picture: str = "") -> ResultPage:
        tables = self.tables(result)
        text = as_markdown(result.study, tables, command, _timing(result), self.remarks(result), picture)
        failed = result.runs[result.runs.status == "failed"].itertuples()
        failures = [f"{run.method}, lr {run.lr:g}: {run.error.strip().splitlines()[-1]}" for run in failed]
        about = {"metric": self.metric, "select_on": self.select_on, "columns": result.columns}
        record = self.record(result.study, **about, **self.numbers(result, tables))
        return ResultPage(tables, text, record, failures)


def _timing(result: Result) -> str:
    found = f", which found {result.found} of them begun or done" if result.found else ""
    return (
        f"{len(result.runs)} runs, {duration(float(result.runs.seconds.sum()))} of training in all, "
        f"{duration(result.seconds)} for the command{found}"
    )


class PaperSpec(TrainingSpec):
    """An experiment of the paper: its published numbers beside ours, and whether its claims hold here."""

    claims: Listed[Claim] = ()

    @classmethod
    def from_tables(cls, name: str, values: Mapping[str, Any]) -> Self:
        return super().from_tables(name, values)._in_shares()

    @model_validator(mode="after")
    def _check_paper(self) -> Self:
        methods, columns = ([table.name for table in tables] for tables in (self.methods, self.columns))
        for claim in self.claims:
            for method in claim.names:
                pick("method", method, methods)
            for column in claim.columns:
                pick("column", column, columns)
        for table in self.methods:
            if table.paper:
                pick("row of the paper", table.paper, self.paper)
        for column in (name for row in self.paper.values() for name in row):
            pick("column of the paper", column, columns)
        return self

    def _in_shares(self) -> Self:
        """Return the same with accuracies between 0 and 1 in place of percent."""
        factor = unit(self.metric)
        paper = {
            row: {column: Published(mean=p.mean / factor, std=_over(p.std, factor)) for column, p in cells.items()}
            for row, cells in self.paper.items()
        }
        claims = tuple(_claim_in_shares(claim, self.metric) for claim in self.claims)
        return self.model_copy(update={"paper": paper, "claims": claims})

    def paper_row(self, method: str) -> str:
        """Return the row of the paper's table that a method is compared with."""
        return next((entry.paper or entry.name for entry in self.methods if entry.name == method), method)

    @property
    def reported_rows(self) -> list[str]:
        """Rows of the paper's table that it quotes from others, and that nothing here is run for."""
        run = {self.paper_row(method.name) for method in self.methods}
        return [row for row in self.paper if row not in run]

    def numbers(self, result: Result, tables: Sequence[Table]) -> dict[str, Any]:
        ours: dict[str, dict[str, Any]] = {method: {} for method in result.methods}
        for cell in result.cells:
            mean = None if math.isnan(cell.mean) else cell.mean
            ours[cell.cell.method][cell.cell.column] = {"mean": mean, "std": cell.std, "runs": len(cell.values)}
        rows = {method: self.paper_row(method) for method in result.methods} | {row: row for row in self.reported_rows}
        paper = {name: {c: _mean(self.paper.get(row, {}), c) for c in result.columns} for name, row in rows.items()}
        return {"paper": paper, "ours": ours, "claims": [verdict.record for verdict in verdicts(self.claims, result)]}


def _claim_in_shares(claim: Claim, metric: str) -> Claim:
    factor = 1.0 if claim.statistic == "usable" else unit(claim.metric or metric)
    bounds = {name: _over(getattr(claim, name), factor) for name in ("margin", "at_least", "at_most")}
    return claim.model_copy(update=bounds)


def _over(value: float | None, factor: float) -> float | None:
    return None if value is None else value / factor


def _mean(row: Mapping[str, Published], column: str) -> float | None:
    return row[column].mean if column in row else None
