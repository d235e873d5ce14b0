"""Run time: the time of an epoch with each bundle size; nothing is trained to the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from pydantic import Field, model_validator

from borat.lab.files import pick
from borat.lab.reproduce.page import as_markdown, duration
from borat.lab.reproduce.spec import Means, Mini, Names, ResultPage, Spec, Study, StudyResult
from borat.lab.reproduce.tables import DASH
from borat.lab.tables import Table
from borat.lab.timing.runtime import Runtime

if TYPE_CHECKING:
    from borat.lab.timing.epochs import EpochTime

SECONDS = "seconds an epoch"
"""The only column of the paper's table."""


class MiniRuntime(Mini):
    """Changes of the mini scale to what is timed."""

    runtime: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class RuntimeResult(StudyResult):
    """The times of an epoch, and the seconds that it took to measure them."""

    runtime: Runtime
    times: Sequence[EpochTime]
    seconds: float


class RuntimeSpec(Spec):
    """The time of an epoch by bundle size."""

    runtime: Runtime
    mini: MiniRuntime = MiniRuntime()

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for key in self.mini.runtime:
            pick("key of mini.runtime", key, Runtime.model_fields)
        for column in (name for row in self.paper.values() for name in row):
            pick("column of the paper", column, [SECONDS])
        return self

    def study(self, scale: str, methods: Names, columns: Names, changes: dict[str, Any]) -> Study:
        if methods or columns or changes:
            raise ValueError(f"{self.name} measures run time: methods, columns and changes do not apply to it")
        return Study(self, scale)

    def timed(self, study: Study) -> Runtime:
        """Return what is timed at the scale of a study."""
        changes = self.mini.runtime if study.scale == "mini" else {}
        return Runtime(**{**self.runtime.model_dump(), **changes})

    def plan(self, study: Study) -> NoReturn:
        raise ValueError(f"{self.name} measures run time and trains nothing")

    def missing(self, study: Study, folder: Path) -> NoReturn:
        self.plan(study)

    def size(self, study: Study) -> str:
        return f"{len(self.runtime.bundle_sizes)} optimizers to time"

    def run(self, study: Study, folder: Path, means: Means) -> RuntimeResult:
        from borat.lab.timing.epochs import measure  # with PyTorch, which nothing above needs

        start, runtime = time.perf_counter(), self.timed(study)
        times = measure(runtime, progress=means.progress)
        return RuntimeResult(study, runtime, times, time.perf_counter() - start)

    def page(self, result: RuntimeResult, command: str, picture: str = "") -> ResultPage:
        from borat.lab.timing.optimizers import machine

        study, runtime = result.study, result.runtime
        remarks = [
            f"Ratios are to {runtime.reference}. {machine()}.",
            f"An epoch is {-(-runtime.examples // runtime.batch_size)} batches of {runtime.batch_size}.",
        ]
        tables = [self._table(result)]
        text = as_markdown(study, tables, command, f"{duration(result.seconds)} for the command", remarks)
        record = self.record(
            study,
            metric="seconds",
            columns=[SECONDS],
            paper={row: {SECONDS: cells[SECONDS].mean} for row, cells in self.paper.items()},
            ours={t.name: {SECONDS: {"mean": t.seconds, "runs": 1}} for t in result.times},
        )
        return ResultPage(tables, text, record)

    def _table(self, result: RuntimeResult) -> Table:
        runtime, times = result.runtime, result.times
        reference = next(t for t in times if t.name == runtime.reference)
        published = {row: cells[SECONDS].mean for row, cells in self.paper.items()}
        rows: list[tuple[str, ...]] = []
        for t in times:
            paper = published.get(t.name)
            rows.append((
                t.name,
                f"{t.seconds / reference.seconds:.3f}",
                DASH if paper is None else f"{paper / published[runtime.reference]:.2f}",
                f"{t.seconds:.1f}",
                DASH if paper is None else f"{paper:g}",
                f"{t.steps:.1f}",
                f"{t.steps / reference.steps:.2f}",
            ))  # fmt: skip
        ratios, seconds = ("ratio, ours", "ratio, paper"), ("epoch, s, ours", "epoch, s, paper")
        head = ("optimizer", *ratios, *seconds, "optimizer, s", "its ratio")
        return Table(result.study.heading, head, rows)


KIND = RuntimeSpec
