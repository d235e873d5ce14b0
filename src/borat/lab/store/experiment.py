"""``experiment.json``: what ``borat reproduce`` leaves beside its runs, and ``borat report`` shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from borat.lab.files import write_json
from borat.lab.metrics import unit
from borat.lab.settings import Settings

NAME = "experiment.json"
FORMAT = 2
"""Of the file. In the first, the paper's accuracies were in percent, and so were the numbers of claims."""


class Ours(Settings):
    """A number of ours: mean and standard deviation over so many runs."""

    mean: float | None
    std: float | None = None
    runs: int


class CheckedClaim(Settings):
    """What the paper says, and whether these runs support it."""

    text: str
    column: str = ""
    verdict: str = ""
    numbers: dict[str, float | None] = Field(default_factory=dict)
    metric: str = ""
    """Of the numbers."""


class ShownTable(Settings):
    """A table as it is shown; cells between double stars are bold."""

    title: str
    head: list[str]
    rows: list[list[str]]


class Experiment(Settings):
    """A table of the paper and ours: by method, then by column. Accuracies are between 0 and 1."""

    title: str
    source: str
    scale: str
    metric: str
    select_on: str = "validation_accuracy"
    """The measurement by which the best runs were chosen."""
    columns: list[str]
    paper: dict[str, dict[str, float | None]]
    ours: dict[str, dict[str, Ours]]
    claims: list[CheckedClaim] = Field(default_factory=list)
    tables: list[ShownTable] = Field(default_factory=list)
    """What a scoreboard has in place of ours and the paper's."""
    folder: str = ""
    """Where it was found, seen from the folder of a report; empty for that folder itself."""

    def write(self, folder: Path) -> Path:
        """Write it into a folder of runs."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / NAME, {"format": FORMAT, **self.model_dump(exclude={"folder"})})
        return folder / NAME

    @classmethod
    def read(cls, path: Path, seen_from: Path) -> Self:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError(f"{NAME} must hold keys and values, got a {type(values).__name__}")
        if values.pop("format", 1) < FORMAT:
            values = _from_first_format(values)
        return cls(**values, folder=path.parent.relative_to(seen_from).as_posix().removeprefix("."))


def _from_first_format(values: dict[str, Any]) -> dict[str, Any]:
    """An old file, which may hold more than there is a use for."""
    known = {key: value for key, value in values.items() if key in Experiment.model_fields}
    factor = unit(str(values.get("metric")))

    def shares(row: dict[str, float | None]) -> dict[str, float | None]:
        return {column: value if value is None else value / factor for column, value in row.items()}

    return {**known, "paper": {method: shares(row) for method, row in known.get("paper", {}).items()}}
