"""``experiment.json``: the results that ``borat reproduce`` writes beside its runs and ``borat report`` shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

from pydantic import Field

from borat.lab.files import write_json
from borat.lab.strict import StrictModel

NAME = "experiment.json"


class Ours(StrictModel):
    """A result of ours: mean and standard deviation over a number of runs."""

    mean: float | None
    std: float | None = None
    runs: int


class CheckedClaim(StrictModel):
    """A claim of the paper, and the verdict of these runs."""

    text: str
    column: str = ""
    verdict: str = ""
    numbers: dict[str, float | None] = Field(default_factory=dict)
    metric: str = ""
    """The metric of the numbers."""


class ShownTable(StrictModel):
    """A table of text; cells between double asterisks are bold."""

    title: str
    head: list[str]
    rows: list[list[str]]


class Experiment(StrictModel):
    """The results of the paper and ours, by method and by column. Accuracies are between 0 and 1."""

    title: str
    source: str
    scale: str
    metric: str
    select_on: str = "validation_accuracy"
    """Measurement by which the best runs were chosen."""
    columns: list[str]
    paper: dict[str, dict[str, float | None]] = Field(default_factory=dict)
    ours: dict[str, dict[str, Ours]] = Field(default_factory=dict)
    claims: list[CheckedClaim] = Field(default_factory=list)
    tables: list[ShownTable] = Field(default_factory=list)
    """Tables of a scoreboard, which has no numbers of the paper."""
    folder: str = ""
    """Its folder relative to the folder of a report; empty for that folder itself."""

    def write(self, folder: Path) -> Path:
        """Write the file into a folder of runs; return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / NAME, self.model_dump(exclude={"folder"}))
        return folder / NAME

    @classmethod
    def read(cls, path: Path, seen_from: Path) -> Self:
        """Read a file, for a report on the folder ``seen_from``."""
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError(f"{NAME} must hold keys and values, got a {type(values).__name__}")
        return cls(**values, folder=path.parent.relative_to(seen_from).as_posix().removeprefix("."))
