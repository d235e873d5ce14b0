"""An experiment: its file as typed values, the experiment at one scale, and its result with the page in Markdown.

Each kind of experiment is a subclass of :class:`Spec` in a module of :mod:`borat.lab.reproduce.kinds`. Accuracies are
in percent in the files, as the paper prints them, and between 0 and 1 in measurements.
"""

from __future__ import annotations

import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from pydantic import Field, model_validator

from borat.lab.config import RunConfig
from borat.lab.files import pick
from borat.lab.store.records import Experiment
from borat.lab.store.run import describe_environment
from borat.lab.strict import Listed, StrictModel
from borat.lab.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from borat.lab.sweeps.engines.base import Engine
    from borat.lab.sweeps.jobs import Watch

Names = Sequence[str]
Changes = Mapping[str, Any] | None


class RunOptions(TypedDict, total=False):
    """Keyword arguments of :meth:`Study.run`, all optional."""

    data_dir: Path | None
    engine: Engine | None
    watch: Watch | None
    """Called with the state of the training runs."""
    progress: Callable[[int, int], None]
    """Called with the number of measurements done, and their total."""


class Published(StrictModel):
    """A published number, as printed."""

    mean: float
    std: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        return value if isinstance(value, dict | cls) else {"mean": value}


PaperTable = dict[str, dict[str, Published]]
"""Numbers of the paper by row and column."""


class Mini(StrictModel):
    """Changes of the mini scale."""

    differences: Listed[str] = ()
    """Text of the changes."""


class Spec(StrictModel, ABC):
    """An experiment of one kind, as its file describes it."""

    name: str
    title: str
    source: str
    question: str
    protocol: str
    needs: str = ""
    notes: Listed[str] = ()
    marks: dict[str, str] = Field(default_factory=dict)
    mini: Mini = Mini()

    @abstractmethod
    def at(self, scale: str, methods: Names = (), columns: Names = (), changes: Changes = None) -> Any:
        """Return the :class:`Study` at one scale, or only some of its methods and columns.

        ``changes`` replaces keys of every configuration. A list of values is a grid, except for the seed.
        """

    @abstractmethod
    def tables(self, result: Any) -> list[Table]:
        """Return the tables of a result, the most important first."""

    @abstractmethod
    def remarks(self, result: Any) -> list[str]:
        """Return sentences that explain the tables."""

    def draw(self, result: Any) -> Figure:
        """Draw the picture of a result, in kinds that have one."""
        raise NotImplementedError


@dataclass(frozen=True)
class Study(ABC):
    """An experiment at one scale, or a part of it."""

    spec: Spec
    scale: str
    changes: Mapping[str, Any]
    """Keys that the user changed."""

    def __post_init__(self) -> None:
        pick("scale", self.scale, ("full", "mini"))

    @property
    def heading(self) -> str:
        return f"{self.spec.title} ({self.spec.source}), {self.scale} scale"

    @abstractmethod
    def size(self) -> str:
        """Return a text about the amount of work, such as the number of runs."""

    @abstractmethod
    def missing(self, folder: Path) -> list[RunConfig]:
        """Return the configurations that are not trained yet. Further seeds follow once all others are done."""

    @abstractmethod
    def run(self, folder: Path, **options: Unpack[RunOptions]) -> StudyResult:
        """Train or measure everything that ``folder`` does not have yet."""


@dataclass(frozen=True)
class StudyResult:
    """The result of an experiment at one scale."""

    study: Study
    seconds: float = field(default=0.0, kw_only=True)
    """Duration of the command, without runs that were already done."""

    def timing(self) -> str:
        """Return a text about the work done and its duration."""
        return f"{duration(self.seconds)} for the command"

    def failures(self) -> list[str]:
        """Return the failed runs and their errors."""
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
    """Return values in the syntax of the command line, with only the name of a file."""
    texts = {}
    for key, value in changes.items():
        values = value if isinstance(value, list) else [value]
        texts[key] = ",".join("none" if v is None else Path(v).name if key == "glove" else f"{v}" for v in values)
    return texts


def duration(seconds: float) -> str:
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200.0 else f"{seconds / 3600:.1f} h"
