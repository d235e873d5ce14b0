"""An experiment: its file as typed values, and the experiment at one scale.

Each kind of experiment is a subclass of :class:`Spec` in a module of :mod:`borat.lab.reproduce.kinds`. Accuracies are
in percent in the files, as the paper prints them, and between 0 and 1 in measurements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from pydantic import Field, model_validator

from borat.lab.config import RunConfig
from borat.lab.files import pick
from borat.lab.strict import Listed, StrictModel
from borat.lab.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from borat.lab.reproduce.page import StudyResult
    from borat.lab.sweeps.engines.base import Engine
    from borat.lab.sweeps.jobs import Watch

SCALES = ("full", "mini")
Names = tuple[str, ...]


class Means(TypedDict, total=False):
    """Means of running an experiment, all optional."""

    data_dir: Path | None
    engine: Engine | None
    watch: Watch | None
    """Called with the state of the training runs."""
    progress: Callable[[int, int], None]
    """Called with the number of measurements done, and their total."""


class Published(StrictModel):
    """A number of the paper, as printed there."""

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
    """The changes in words."""


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

    def at(
        self,
        scale: str,
        *,
        methods: Sequence[str] = (),
        columns: Sequence[str] = (),
        changes: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the :class:`Study` at one scale, or only some of its methods and columns.

        ``changes`` replaces keys of every configuration. A list of values is a grid, except for the seed.
        """
        return self.study(pick("scale", scale, SCALES), tuple(methods), tuple(columns), dict(changes or {}))

    @abstractmethod
    def study(self, scale: str, methods: Names, columns: Names, changes: dict[str, Any]) -> Study:
        """Implement :meth:`at` for a kind of experiment."""

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
    """Changes made by hand."""

    @property
    def heading(self) -> str:
        return f"{self.spec.title} ({self.spec.source}), {self.scale} scale"

    @abstractmethod
    def size(self) -> str:
        """Return the amount of work in words."""

    @abstractmethod
    def missing(self, folder: Path) -> list[RunConfig]:
        """Return the configurations still to train. Further seeds follow once all others are done."""

    @abstractmethod
    def run(self, folder: Path, **means: Unpack[Means]) -> StudyResult:
        """Train or measure what is missing in ``folder``."""
