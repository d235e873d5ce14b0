"""``experiment.json``: the tables that ``borat reproduce`` keeps beside its runs, and ``borat report`` shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

from borat.lab.files import write_json
from borat.lab.strict import Listed, StrictModel
from borat.lab.tables import Table

NAME = "experiment.json"


class Experiment(StrictModel):
    """The result of an experiment."""

    title: str
    source: str
    scale: str
    select_on: str = "validation_accuracy"
    """The metric by which the best runs were chosen."""
    tables: Listed[Table]
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
