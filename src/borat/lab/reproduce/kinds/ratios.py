"""Ratios: the loss of each method on each task over that of a tuned reference."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from borat.lab.config import RunConfig
from borat.lab.files import pick
from borat.lab.metrics import lower_is_better
from borat.lab.reproduce.run import Result
from borat.lab.reproduce.training import MetricName, TrainingSpec
from borat.lab.tables import DASH, Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

NEAR = 1.05
"""Largest ratio that counts as equal."""
FLOOR = 1e-12
"""Smaller losses count as this, so that a loss of zero has a ratio."""
PLAIN = "plain"


class RatiosSpec(TrainingSpec):
    """All methods on all tasks, plain and under conditions: a shifted loss or clipped gradients.

    The name of a method under a condition is that of the method, a colon, and any text.
    """

    metric: MetricName = "test_loss"
    select_on: MetricName = "validation_loss"
    reference: str
    """The method that all others are compared with."""

    @model_validator(mode="after")
    def _check_reference(self) -> Self:
        pick("reference", self.reference, self.method_names)
        for name in (self.metric, self.select_on):
            if not lower_is_better(name):
                raise ValueError(f"metric and select_on must be losses for ratios, got {name!r}")
        return self

    def tables(self, result: Result) -> list[Table]:
        ratios = _ratios(self, result)
        by_task = [
            Table(f"Ratios by task: {condition}", ("task", *found.index), _lines(found.T))
            for condition, found in _by_condition(ratios).items()
        ]
        return [*ratio_tables(result.study.heading, ratios), *by_task, _rates(result)]

    def remarks(self, result: Result) -> list[str]:
        return [
            f"A ratio is a method's score over that of {self.reference}, plain; each score is a mean over the seeds "
            f"{', '.join(map(str, result.study.seeds))}. Lower is better. Scores where higher is better, such as a "
            "return, are replaced by their reciprocals. A run that diverged has an infinite ratio.",
            f"Within {100 * (NEAR - 1):.0f} % are the tasks with a ratio of at most {NEAR:g}.",
            "Of several learning rates, the one with the best validation score is chosen, with the first seed.",
            "A method that does not see the loss gives the same result whatever is added to it.",
        ]

    def draw(self, result: Result) -> Figure:
        from borat.lab.reproduce.picture import draw_ratios  # imports Matplotlib, which the tables do not need

        plain = _by_condition(_ratios(self, result))[PLAIN]
        return draw_ratios(f"{self.title}: score over that of {self.reference}", {"": with_mean(plain)})


def _ratios(spec: RatiosSpec, result: Result) -> pd.DataFrame:
    """Return a row for each method under each condition and a column for each task."""
    import pandas as pd  # slow to import, and not needed to list experiments

    losses: dict[tuple[str, str], dict[str, float]] = {}
    for cell in result.cells:
        place = (cell.cell.method.partition(":")[0], condition_of(cell.cell.configs[0]))
        mean = float(cell.chosen.value.mean(skipna=False))  # NaN if no configuration worked, or if a seed diverged
        losses.setdefault(place, {})[cell.cell.column] = math.inf if math.isnan(mean) else mean
    table = pd.DataFrame.from_dict(losses, orient="index", columns=result.columns).clip(lower=FLOOR)
    if (spec.reference, PLAIN) not in table.index:
        raise ValueError(f"ratios need the reference {spec.reference}: add it to the methods")
    return table / table.loc[(spec.reference, PLAIN)]


def summarise(ratios: pd.DataFrame) -> pd.DataFrame:
    """Return summary statistics of each row.

    >>> import pandas as pd
    >>> summarise(pd.DataFrame({"vae": [1.0], "gan": [4.0], "physics": [2.0]})).iloc[0].to_dict()
    {'median': 2.0, 'mean': 2.0, 'worst': 4.0, 'task': 'gan', 'near': 1, 'tasks': 3}
    """
    import pandas as pd

    return pd.DataFrame({
        "median": ratios.median(axis=1),
        "mean": ratios.map(math.log).mean(axis=1).map(math.exp),
        "worst": ratios.max(axis=1),
        "task": ratios.idxmax(axis=1),
        "near": (ratios <= NEAR).sum(axis=1),
        "tasks": ratios.notna().sum(axis=1),
    })  # fmt: skip


def with_mean(ratios: pd.DataFrame) -> pd.DataFrame:
    """Return the ratios, with their geometric means as the first column."""
    return summarise(ratios)[["mean"]].set_axis(["all tasks"], axis=1).join(ratios)


def ratio_tables(title: str, ratios: pd.DataFrame) -> list[Table]:
    """Return a summary of all rows, and the geometric means by method and condition."""
    summary = summarise(ratios)
    rows = []
    for s in summary.itertuples():
        numbers = (f"{s.median:.3f}", f"{s.mean:.3f}", f"{_text(s.worst)}, {s.task}", f"{s.near} of {s.tasks}")
        rows.append((*s.Index, *numbers))
    head = ("method", "condition", "median", "geometric mean", "worst", f"within {100 * (NEAR - 1):.0f} %")
    methods, conditions = (ratios.index.unique(level) for level in (0, 1))
    means = summary["mean"].unstack().reindex(index=methods, columns=conditions)
    name = "Geometric mean of the ratios by condition"
    return [Table(title, head, rows), Table(name, ("method", *conditions), _lines(means))]


def _by_condition(ratios: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {condition: ratios.xs(condition, level=1) for condition in ratios.index.unique(1)}


def _lines(table: pd.DataFrame) -> list[tuple[str, ...]]:
    return [(str(name), *map(_text, row)) for name, row in zip(table.index, table.to_numpy(), strict=True)]


def _text(ratio: float) -> str:
    if math.isnan(ratio):
        return DASH
    return f"{ratio:.3f}" if ratio < 10.0 else f"{ratio:.3g}"


def _rates(result: Result) -> Table:
    """Return the chosen learning rates of methods that try several."""
    cells = [cell for cell in result.cells if len(cell.cell.configs) > 1]
    methods = list(dict.fromkeys(cell.cell.method for cell in cells))
    chosen = {(c.cell.method, c.cell.column): f"{c.config.lr:g}" for c in cells if c.config is not None}
    rows = [(task, *(chosen.get((method, task), DASH) for method in methods)) for task in result.columns]
    return Table("Chosen learning rates", ("task", *methods), rows)


def condition_of(config: RunConfig) -> str:
    """Return the name of the condition of a run.

    >>> condition_of(RunConfig(task="vae")), condition_of(RunConfig(task="vae", shift=-3.0, clip=0.1))
    ('plain', 'loss - 3; gradients clipped at 0.1')
    """
    shift = f"loss {'-' if config.shift < 0.0 else '+'} {abs(config.shift):g}" if config.shift else ""
    clip = f"gradients clipped at {config.clip:g}" if config.clip else ""
    return "; ".join(filter(None, (shift, clip))) or PLAIN


KIND = RatiosSpec
