"""The page of a result: the question, the protocol and the tables, in Markdown."""

from __future__ import annotations

import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from borat.lab.reproduce.spec import Study
from borat.lab.store.records import Experiment
from borat.lab.store.run import describe_environment
from borat.lab.tables import Table


@dataclass(frozen=True)
class StudyResult(ABC):
    """The result of an experiment at one scale."""

    study: Study

    @abstractmethod
    def timing(self) -> str:
        """Return the amount of work done, and how long it took, in words."""

    def failures(self) -> list[str]:
        """Return the runs that failed, and why."""
        return []

    @cached_property
    def tables(self) -> list[Table]:
        return self.study.spec.tables(self)

    @property
    def experiment(self) -> Experiment:
        """The record that ``borat report`` reads."""
        spec, scale, tables = self.study.spec, self.study.scale, tuple(self.tables)
        select_on = getattr(spec, "select_on", "")
        return Experiment(title=spec.title, source=spec.source, scale=scale, select_on=select_on, tables=tables)

    def markdown(self, command: str, picture: str = "") -> str:
        """Return the page of the result; ``picture`` is the link to its picture."""
        spec, scale, environment = self.study.spec, self.study.scale, describe_environment()
        versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
        facts = [f"Paper: {spec.source}.", f"Scale: **{scale}**.", f"Data: {spec.needs}." if spec.needs else ""]
        changed = "; ".join(f"{key} {text}" for key, text in changes_text(self.study.changes).items())
        by_hand = [f"Changed by hand for this result: {changed}."] if changed else []
        marks = (f"{mark}: {meaning}." for mark, meaning in spec.marks.items())
        parts = [
            f"# {spec.title}: {scale} scale",
            " ".join(fact for fact in facts if fact),
            spec.question,
            *([f"![{spec.title}]({picture})"] if picture else ()),
            *(table.as_markdown().strip() for table in self.tables),
            *_list("Remarks", [*by_hand, *spec.remarks(self), *marks]),
            *(_list("What the mini scale changes", spec.mini.differences) if scale == "mini" else ()),
            f"## The protocol at full scale\n\n{spec.protocol.strip()}",
            *_list("Notes", spec.notes),
            f"## How this was made\n\n    {command}\n\n{date.today().isoformat()}, {self.timing()}. "
            f"{environment['machine']}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}.",
        ]
        return "\n\n".join(parts) + "\n"


def _list(title: str, lines: Iterable[str]) -> list[str]:
    text = "\n".join(f"- {line}" for line in lines)
    return [f"## {title}\n\n{text}"] if text else []


def changes_text(changes: Mapping[str, Any]) -> dict[str, str]:
    """Return values as the command line takes them; of a file, only the name."""
    texts = {}
    for key, value in changes.items():
        values = value if isinstance(value, list) else [value]
        texts[key] = ",".join("none" if v is None else Path(v).name if key == "glove" else f"{v}" for v in values)
    return texts


def duration(seconds: float) -> str:
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200.0 else f"{seconds / 3600:.1f} h"
