"""FreeBORAT's rolling bundle: its few numbers, and the step that its dual finds.

Each batch adds a piece and the oldest leaves. A piece is an affine function, kept as its gradient (in the optimizer's
state) and its value at the origin (here): so its value at the centre is measured anew for every step, wherever decay,
a projection or somebody else has put the centre.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from borat.bundle import StepInfo, kind_of, one_or_all
from borat.dual import Array
from borat.dual import maximise as maximise

AIM = 0.5
"""How far a step aims where nobody says it."""


@dataclass(frozen=True)
class Products:
    """The inner products of ``n`` pieces, the newest last: see :func:`borat.metric.sums`."""

    gram: Array
    """``<g_i, g_j / D>``, over all parameters."""
    lengths: Array
    """``<g_i / D, g_j / D>`` for each parameter group."""
    at_centre: Array
    """``<g_i, z>``"""
    apart: float
    """``<g, z - y>`` of the newest."""

    @classmethod
    def of(cls, sums: Array, pieces: int) -> Products:
        """From the sums of each parameter group."""
        pairs = pieces * (pieces + 1) // 2
        total = sums.sum(axis=0)
        return cls(
            gram=_symmetric(total[:pairs], pieces),
            lengths=np.stack([_symmetric(row[pairs : 2 * pairs], pieces) for row in sums]),
            at_centre=total[2 * pairs : -1],
            apart=float(total[-1]),
        )


@dataclass(frozen=True)
class Solution:
    """The step of one batch.

    Attributes:
        alpha: the weight of each piece, the target's last.
        values: the value of each piece at the centre, the target's last, measured from the bound.
        eta: the cap of the step.
        dual_value: measured from the bound.
        lengths: ``<g_i / D, g_j / D>`` for each parameter group.
    """

    alpha: Array
    values: Array
    eta: float
    dual_value: float
    lengths: Array

    @property
    def coefficients(self) -> list[float]:
        """``eta * alpha``: how far the step goes against each piece."""
        steps: list[float] = (self.eta * self.alpha[:-1]).tolist()
        return steps

    @property
    def step_size(self) -> float:
        """``tau``: the cap times the weight of all pieces but the target."""
        return sum(self.coefficients)

    def step_norm(self, lr: Array) -> float:
        """The length of the step, with a factor for each parameter group."""
        steps = np.array(self.coefficients)
        return math.sqrt(max(float(lr**2 @ (steps @ self.lengths @ steps)), 0.0))

    def describe(self, lower_bound: float, lr: list[float]) -> StepInfo:
        """For people and logs."""
        norm = self.step_norm(np.array(lr))
        return describe(
            self.alpha,
            self.values,
            eta=self.eta,
            dual_value=self.dual_value,
            step_norm=norm,
            lower_bound=lower_bound,
            lr=lr,
        )


def describe(
    alpha: Array,
    values: Array,
    *,
    eta: float,
    dual_value: float,
    step_norm: float,
    lower_bound: float,
    lr: list[float],
) -> StepInfo:
    """A step as people and logs see it: with values that are not measured from the bound."""
    weights = tuple(alpha.tolist())
    support = tuple(i for i, weight in enumerate(weights) if weight > 0.0)
    offsets = tuple((values + lower_bound).tolist())
    step_size = sum((eta * alpha[:-1]).tolist())
    return StepInfo(
        alpha=weights,
        offsets=offsets,
        dual_value=dual_value + lower_bound,
        support=support,
        kind=kind_of(support, len(weights)),
        step_norm=step_norm,
        lr=one_or_all(lr),
        step_size=one_or_all([factor * step_size for factor in lr]),
        target=offsets[-1],
        gap=max(float(values[-2]), 0.0),
    )


def rows_of(batches: int, rows: int) -> list[int]:
    """In which rows the kept gradients are, oldest first: each batch's replaces that of so many batches before."""
    return [k % rows for k in range(batches - min(batches, rows), batches)]


class RollingBundle:
    """The numbers from one batch to the next.

    Args:
        size: the number of pieces, the target included.
        numbers: where to go on, as :meth:`numbers` gave them; before the first batch by default.
    """

    def __init__(self, size: int, numbers: Mapping[str, Any] | None = None) -> None:
        self.size = size
        self.batches = 0
        """``k``: how many batches were taken."""
        self.at_origin: list[float] = []
        """The values at the origin of the pieces that are kept, oldest first."""
        self.gaps = self.squares = 0.0
        """The sums of all ``h`` and of all ``<g, g / D>``, each in the metric of its batch."""
        self.beta = 0.0
        """With which the model was put at ``y``; a schedule may have changed it since."""
        self.dropped = 0
        self.evaluating = False
        if numbers:
            self._restore(numbers)

    def numbers(self) -> dict[str, Any]:
        """All of it, as plain numbers and lists."""
        return {
            "batches": self.batches,
            "at_origin": list(self.at_origin),
            "gaps": self.gaps,
            "squares": self.squares,
            "beta": self.beta,
            "dropped": self.dropped,
            "evaluating": int(self.evaluating),
        }

    def _restore(self, numbers: Mapping[str, Any]) -> None:
        self.batches, self.dropped = int(numbers["batches"]), int(numbers["dropped"])
        self.at_origin = [float(value) for value in numbers["at_origin"]]
        # A checkpoint without sums was made before there were any: they begin with the next batch.
        self.gaps, self.squares = float(numbers.get("gaps", 0.0)), float(numbers.get("squares", 0.0))
        self.beta = float(numbers["beta"])
        self.evaluating = bool(numbers["evaluating"])
        if len(self.at_origin) != min(self.batches, self.size - 2):
            raise ValueError(
                f"the bundle's at_origin must have {min(self.batches, self.size - 2)} values, got {self.at_origin}"
            )

    def add_group(self) -> None:
        """All numbers are of all parameter groups together."""

    @property
    def rows(self) -> list[int]:
        """In which rows the kept gradients are, oldest first."""
        return rows_of(self.batches, self.size - 2)

    @property
    def free_row(self) -> int | None:
        """Where to keep the gradient of the batch at hand; None in a bundle that keeps none."""
        return self.batches % (self.size - 2) if self.size > 2 else None

    def solve(self, loss: float, products: Products, lower_bound: float, aim: float | None, beta: float) -> Solution:
        """Steps 2 to 4 of the algorithm, for the batch at hand as the newest piece."""
        k = self.batches + 1
        # 2. The values of all pieces at the centre.
        newest = loss + products.apart
        values = np.append(np.array(self.at_origin) + products.at_centre[:-1], newest) - lower_bound
        # 3. The level to aim at, and the Polyak step as the cap: of this batch, and of all together.
        gap, square = max(float(values[-1]), 0.0), float(products.gram[-1, -1])
        target = gap * (1.0 - (AIM if aim is None else aim) * (1.0 - beta**k))
        eta = _ratio(gap, square)
        if aim is None:
            eta = min(eta, _ratio(self.gaps + gap, self.squares + square))
        # 4. The dual. The constant piece has a zero row.
        n = len(values)
        Q, b = np.zeros((n + 1, n + 1)), np.append(values, target)
        with np.errstate(over="ignore", invalid="ignore"):
            Q[:n, :n] = eta * products.gram
        if eta == 0.0:
            alpha, dual_value = np.append(np.zeros(n), 1.0), target
        elif np.isfinite(Q).all():
            alpha, dual_value = maximise(Q, b)
        else:
            alpha, dual_value = np.full(n + 1, math.nan), math.nan
        return Solution(alpha, b, eta, dual_value, products.lengths)

    def keep(self, loss: float, products: Products, solution: Solution, beta: float) -> None:
        """Take the batch: its piece is kept, the oldest leaves."""
        self.gaps += max(float(solution.values[-2]), 0.0)
        self.squares += float(products.gram[-1, -1])
        at_origin = loss + products.apart - float(products.at_centre[-1])
        self.at_origin = [*self.at_origin, at_origin][max(len(self.at_origin) + 3 - self.size, 0) :]
        self.batches += 1
        self.beta = beta


def _symmetric(lower: Array, size: int) -> Array:
    matrix = np.zeros((size, size))
    matrix[np.tril_indices(size)] = lower
    return matrix + np.tril(matrix, -1).T


def _ratio(gap: float, squared_norm: float) -> float:
    """The Polyak step; none where there is no gradient, or one so short that the step has no end."""
    step = gap / squared_norm if squared_norm > 0.0 else 0.0
    return step if math.isfinite(step) else 0.0
