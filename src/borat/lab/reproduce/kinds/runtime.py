"""Run time: the time of an epoch with each bundle size; nothing is trained to the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack

from pydantic import Field, model_validator

from borat.lab.files import pick
from borat.lab.reproduce.spec import Changes, Mini, Names, PaperTable, RunOptions, Spec, Study, StudyResult
from borat.lab.tables import DASH, Table
from borat.lab.timing.shapes import Runtime

if TYPE_CHECKING:
    from borat.lab.timing.epochs import EpochTime

SECONDS = "seconds an epoch"
"""The only column of the paper's table."""


class MiniRuntime(Mini):
    """Changes of the mini scale to the model and the batch that are timed."""

    runtime: dict[str, Any] = Field(default_factory=dict)


class RuntimeSpec(Spec):
    """The time of an epoch by bundle size."""

    runtime: Runtime
    paper: PaperTable = Field(default_factory=dict)
    mini: MiniRuntime = MiniRuntime()

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        self.at("mini")  # raises for unknown keys and wrong values
        for column in (name for row in self.paper.values() for name in row):
            pick("column of the paper", column, [SECONDS])
        return self

    def at(self, scale: str, methods: Names = (), columns: Names = (), changes: Changes = None) -> RuntimeStudy:
        if methods or columns or changes:
            raise ValueError(f"{self.name} measures run time: methods, columns and changes do not apply to it")
        smaller = self.mini.runtime if scale == "mini" else {}
        return RuntimeStudy(self, scale, {}, Runtime(**{**self.runtime.model_dump(), **smaller}))

    def remarks(self, result: RuntimeResult) -> list[str]:
        from borat.lab.timing.optimizers import machine

        runtime = result.study.runtime
        return [
            f"Ratios are to {runtime.reference}. {machine()}.",
            f"An epoch is {-(-runtime.examples // runtime.batch_size)} batches of {runtime.batch_size}.",
        ]

    def tables(self, result: RuntimeResult) -> list[Table]:
        name = result.study.runtime.reference
        reference = next(t for t in result.times if t.name == name)
        published = {row: cells[SECONDS].mean for row, cells in self.paper.items()}
        rows = []
        for t in result.times:
            paper = published.get(t.name)
            rows.append((
                t.name,
                f"{t.seconds / reference.seconds:.3f}",
                DASH if paper is None else f"{paper / published[name]:.2f}",
                f"{t.seconds:.1f}",
                DASH if paper is None else f"{paper:g}",
                f"{t.steps:.1f}",
                f"{t.steps / reference.steps:.2f}",
            ))  # fmt: skip
        ratios, seconds = ("ratio, ours", "ratio, paper"), ("epoch, s, ours", "epoch, s, paper")
        head = ("optimizer", *ratios, *seconds, "optimizer, s", "its ratio")
        return [Table(result.study.heading, head, rows)]


@dataclass(frozen=True)
class RuntimeStudy(Study):
    """The model and the batch that are timed at one scale."""

    spec: RuntimeSpec
    runtime: Runtime

    def size(self) -> str:
        return f"{len(self.runtime.bundle_sizes)} optimizers to time"

    def missing(self, folder: Path) -> NoReturn:
        raise ValueError(f"{self.spec.name} measures run time and trains nothing")

    def run(self, folder: Path, **options: Unpack[RunOptions]) -> RuntimeResult:
        from borat.lab.timing.epochs import measure  # imports PyTorch, which reading a file does not need

        start = time.perf_counter()
        times = measure(self.runtime, options.get("progress"))
        return RuntimeResult(self, times, seconds=time.perf_counter() - start)


@dataclass(frozen=True)
class RuntimeResult(StudyResult):
    """The times of an epoch."""

    study: RuntimeStudy
    times: Sequence[EpochTime]


KIND = RuntimeSpec
