"""An experiment: its file as typed values, and a study, the experiment at one scale.

Each kind of experiment is a subclass of :class:`Spec` in a module of :mod:`borat.lab.reproduce.kinds`. Inside,
accuracies are between 0 and 1; in the files they are in percent, as the paper prints them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from borat.lab.config import RunConfig
from borat.lab.files import pick
from borat.lab.metrics import METRICS
from borat.lab.store.experiment import Experiment
from borat.lab.strict import Listed, StrictModel
from borat.lab.sweeps.grid import Layer
from borat.lab.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from borat.lab.sweeps.engines.base import Engine
    from borat.lab.sweeps.progress import Watch

SCALES = ("full", "mini")
Names = tuple[str, ...]
STATISTICS = ("value", "best", "mean", "usable")


class Published(StrictModel):
    """A number of the paper."""

    mean: float
    std: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        return value if isinstance(value, dict | cls) else {"mean": value}


class Claim(StrictModel):
    """A sentence of the paper about its results, in a form that can be checked.

    The ``statistic`` of a method is its ``value`` in the table; in a grid it is the ``best`` or the ``mean`` over the
    cells, or the number of ``usable`` cells (see :mod:`borat.lab.robustness`). ``where`` keeps the cells with these
    values of these keys only. A cell is the mean over the seeds, and not usable if one diverged. In a mean over cells,
    a run that diverged has an accuracy of 0, or an infinite loss.

    Each group of methods in ``order`` must be at least as good as the next, that is its worst as the other's best, by
    ``margin`` or ``factor``; without these, the first must be better than the last. Or each method must reach
    ``at_least`` or ``at_most``.

    A claim about another ``metric`` than the table's, or about an earlier ``epoch`` than the last, takes the value from
    the record of that epoch, counted from 1.
    """

    text: str
    statistic: str = "value"
    order: Listed[Listed[str]] = ()
    methods: Listed[str] = ()
    columns: Listed[str] = ()
    where: dict[str, list[Any]] = Field(default_factory=dict)
    margin: float = 0.0
    factor: float = 1.0
    at_least: float | None = None
    at_most: float | None = None
    scale: str = ""
    """The only scale at which it can be checked, if there is one."""
    metric: str = ""
    epoch: int = 0

    @model_validator(mode="before")
    @classmethod
    def _groups(cls, values: Any) -> Any:
        """Accept a method in place of a group of one."""
        if not isinstance(values, dict) or not isinstance(values.get("order", ()), list | tuple):
            return values
        groups = [(group,) if isinstance(group, str) else group for group in values.get("order", ())]
        return {**values, "order": groups}

    @model_validator(mode="after")
    def _check(self) -> Self:
        pick("statistic", self.statistic, STATISTICS)
        if self.metric:
            pick("metric", self.metric, METRICS)
        if self.epoch < 0 or ((self.epoch or self.metric) and self.statistic != "value"):
            raise ValueError(f"the claim {self.text!r} needs the statistic value and an epoch from 1 on")
        bounded = self.methods and (self.at_least is not None or self.at_most is not None)
        if not (len(self.order) > 1 or bounded):
            raise ValueError(f"the claim {self.text!r} needs an order, or methods and a bound")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return self.methods + tuple(name for group in self.order for name in group)


class Mini(StrictModel):
    """Changes of the mini scale."""

    differences: Listed[str] = ()
    """The changes in words."""


class Spec(StrictModel, ABC):
    """One experiment, of one kind: what it plans, what it runs, and the page of its results."""

    draws_picture: ClassVar[bool] = False
    """True if :meth:`draw` makes a picture of the result."""

    name: str
    title: str
    source: str
    question: str
    protocol: str
    needs: str = ""
    notes: Listed[str] = ()
    paper: dict[str, dict[str, Published]] = Field(default_factory=dict)
    marks: dict[str, str] = Field(default_factory=dict)
    mini: Mini = Mini()

    @classmethod
    def from_tables(cls, name: str, values: Mapping[str, Any]) -> Self:
        """Build an experiment from the tables of its file."""
        return cls(**values, name=name)

    def at(
        self,
        scale: str,
        *,
        methods: Sequence[str] = (),
        columns: Sequence[str] = (),
        changes: Mapping[str, Any] | None = None,
    ) -> Study:
        """Return the experiment at one scale, or some of its methods and columns.

        ``changes`` replaces keys of every configuration; a list is a grid, but for the seed.
        """
        return self.study(pick("scale", scale, SCALES), tuple(methods), tuple(columns), dict(changes or {}))

    @abstractmethod
    def study(self, scale: str, methods: Names, columns: Names, changes: dict[str, Any]) -> Study:
        """Return what :meth:`at` returns."""

    @abstractmethod
    def plan(self, study: Study) -> list[Cell]:
        """Return the configurations to train for each method in each column."""

    @abstractmethod
    def missing(self, study: Study, folder: Path) -> list[RunConfig]:
        """Return the configurations still to train. Those with further seeds are known once all others are done."""

    @abstractmethod
    def size(self, study: Study) -> str:
        """Return the amount of work in words."""

    @abstractmethod
    def run(self, study: Study, folder: Path, means: Means) -> StudyResult:
        """Train or measure what is missing in ``folder``."""

    @abstractmethod
    def page(self, result: Any, command: str, picture: str = "") -> ResultPage:
        """Return the page of a result; ``picture`` is the link to its picture."""

    def record(self, study: Study, **parts: Any) -> Experiment:
        """Return what ``borat report`` shows of the result."""
        return Experiment(title=self.title, source=self.source, scale=study.scale, **parts)

    def draw(self, result: Any) -> Figure:
        """Draw the picture of a result."""
        raise NotImplementedError


@dataclass(frozen=True)
class Means:
    """Means of running an experiment: its data, its engine, and callbacks."""

    data_dir: Path | None = None
    engine: Engine | None = None
    watch: Watch | None = None
    """Called with the state of training runs."""
    progress: Callable[[int, int], None] = lambda done, total: None
    """Called with the done and the total measurements."""


@dataclass(frozen=True)
class Cell:
    """A method in a column of the table."""

    method: str
    column: str
    configs: tuple[RunConfig, ...]
    """Configurations to train, with the first seed or, in a grid, with each."""
    varied: tuple[str, ...]
    """The keys that have several values, but for the seed."""
    default: RunConfig | None = None
    """In a scoreboard, the configuration with the learning rate that its authors advise."""


@dataclass(frozen=True)
class Study:
    """An experiment at one scale, or a part of it."""

    spec: Spec
    scale: str
    seeds: tuple[int, ...] = ()
    """Of the numbers that are shown."""
    layers: Mapping[tuple[str, str], Layer] = field(default_factory=dict)
    """Keys and grid of each method in each column."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Changes made by hand."""

    def plan(self) -> list[Cell]:
        return self.spec.plan(self)

    def missing(self, folder: Path) -> list[RunConfig]:
        return self.spec.missing(self, folder)

    def run(self, folder: Path, **means: Any) -> Any:
        """Train or measure what is missing in ``folder``, by these :class:`Means`."""
        return self.spec.run(self, folder, Means(**means))

    @property
    def heading(self) -> str:
        return f"{self.spec.title} ({self.spec.source}), {self.scale} scale"


@dataclass(frozen=True)
class StudyResult:
    """The result of an experiment at one scale."""

    study: Study

    def page(self, command: str, picture: str = "") -> ResultPage:
        """Return the page of the result; ``picture`` is the link to its picture."""
        return self.study.spec.page(self, command, picture)


@dataclass(frozen=True)
class ResultPage:
    """Tables and texts that a command shows and writes."""

    tables: list[Table]
    markdown: str
    experiment: Experiment
    """The record that ``borat report`` reads."""
    failures: list[str] = field(default_factory=list)
    """Runs that failed, and why."""
