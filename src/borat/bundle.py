"""The open bundle: its Gram matrix, its offsets and the solution of its dual.

The numbers live in a *ledger*, a small dictionary of float64 tensors and integers inside the optimizer's state, so
that a checkpoint taken in the middle of a bundle continues as if nothing had happened. Notation of the paper: piece
``n`` has the gradient ``g_n`` and the offset ``b_n``; ``Q[n, k] = sum over groups of lr * <g_n, g_k>``; ``alpha``
are the weights of the pieces, the bound's last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from borat.dual import Array, IncrementalDual

Ledger = dict[str, Any]


@dataclass(frozen=True)
class StepInfo:
    """What the last completed update did.

    Attributes:
        alpha: the weight of each piece, the bound's last (``bundle_size=1`` has no bound).
        offsets: the offset ``b`` of each piece, the bound's last.
        dual_value: the largest dual value, which is the smallest value of the proximal problem.
        support: the pieces with a positive weight.
        kind: the paper's name of that subproblem for bundles of up to three (SGD, ESGD, ZERO, ALIG, EALIG, MAX2,
            MAX3), otherwise the support with the bound as B, such as ``"0+2+B"``.
        step_norm: the length of the step, before momentum and projection.
        lr: the maximal learning rate; one for each parameter group, if there are several.
    """

    alpha: tuple[float, ...]
    offsets: tuple[float, ...]
    dual_value: float
    support: tuple[int, ...]
    kind: str
    step_norm: float
    lr: float | tuple[float, ...]


_KINDS: dict[int, dict[tuple[int, ...], str]] = {
    1: {(0,): "SGD"},
    2: {(0,): "SGD", (1,): "ZERO", (0, 1): "ALIG"},
    3: {
        (0,): "SGD",
        (1,): "ESGD",
        (2,): "ZERO",
        (0, 2): "ALIG",
        (1, 2): "EALIG",
        (0, 1): "MAX2",
        (0, 1, 2): "MAX3",
    },
}
"""The paper's table of subproblems: by bundle size and support."""


def new_ledger(bundle_size: int, groups: int) -> Ledger:
    """The numbers of an optimizer that has seen no batch."""
    pieces = max(bundle_size - 1, 1)
    return {
        "gram": torch.zeros(groups, pieces, pieces, dtype=torch.float64),
        "offsets": torch.zeros(pieces, dtype=torch.float64),
        "alpha": torch.zeros(bundle_size, dtype=torch.float64),
        "lr": torch.zeros(groups, dtype=torch.float64),
        "lower_bound": 0.0,
        "position": 0,
        "dropped": 0,
        "evaluating": 0,
    }


class Bundle:
    """The arithmetic of the open bundle, on the numbers of a ledger."""

    def __init__(self, ledger: Ledger, bundle_size: int) -> None:
        self.ledger = ledger
        self.size = bundle_size
        self._view_ledger()
        self._start_dual()
        for n in range(self.position):
            self._dual.add(self._dual_row(n), self.offsets[n])

    @property
    def position(self) -> int:
        """The number of pieces in the bundle."""
        return int(self.ledger["position"])

    @property
    def is_full(self) -> bool:
        return self.position == len(self.offsets)

    def open(self, lr: Sequence[float], lower_bound: float) -> None:
        """Start a bundle; the arguments hold until it is closed."""
        self.lr[:] = lr
        self.ledger["lower_bound"] = lower_bound
        self._start_dual()

    def add(self, loss: float, products: Array) -> None:
        """Append the piece measured at the trial point and solve the dual again.

        Args:
            loss: the loss at the trial point.
            products: ``<g_n, g_k>`` for each group (row) and ``k <= n``.
        """
        n = self.position
        above_bound = loss - self.ledger["lower_bound"]
        self.gram[:, n, : n + 1] = self.gram[:, : n + 1, n] = products
        if np.isinf(self.lr[0]):
            self.lr[:] = _polyak_step(above_bound, float(products.sum()))
        row = self._dual_row(n)
        # The trial point is w - sum of alpha_k * lr * g_k, hence <g_n, trial - w> = -sum of alpha_k * Q[n, k].
        self.offsets[n] = above_bound + self.alpha[:n] @ row[self._bounds : -1]
        weights = self._dual.add(row, self.offsets[n])
        self.alpha[: n + 1] = weights[self._bounds :]
        self.alpha[n + 1 : n + 1 + self._bounds] = weights[: self._bounds]
        self.ledger["position"] = n + 1

    def can_hold(self, products: Array) -> bool:
        """Whether the gradient is short enough for its row of ``Q`` to be finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isinf(self.lr[0]) or np.isfinite(self.lr @ products).all())

    def close(self) -> None:
        """Forget the pieces."""
        self.ledger["position"] = 0

    def steps(self, group: int) -> list[float]:
        """``lr * alpha``: how far the solution goes against each piece's gradient."""
        steps: list[float] = (self.lr[group] * self.alpha[: self.position]).tolist()
        return steps

    def describe(self) -> StepInfo:
        """The solution, for people and logs."""
        n, bound = self.position, float(self.ledger["lower_bound"])
        alpha = tuple(self.alpha[: n + self._bounds].tolist())
        support = tuple(i for i, a in enumerate(alpha) if a > 0.0)
        squared_norms = self.alpha[:n] @ self.gram[:, :n, :n] @ self.alpha[:n]
        lr = tuple(self.lr.tolist())
        return StepInfo(
            alpha=alpha,
            offsets=tuple((self.offsets[:n] + bound).tolist()) + (bound,) * self._bounds,
            dual_value=self._dual.value + bound,
            support=support,
            kind=_kind(support, len(alpha)),
            step_norm=math.sqrt(max(float(self.lr**2 @ squared_norms), 0.0)),
            lr=lr[0] if len(lr) == 1 else lr,
        )

    def add_group(self) -> None:
        """Make room for one more parameter group, which has no part in the open bundle so far."""
        for key in ("gram", "lr"):
            self.ledger[key] = torch.cat((self.ledger[key], torch.zeros_like(self.ledger[key][:1])))
        self._view_ledger()

    @property
    def _bounds(self) -> int:
        """The number of constant pieces. A bundle of one has none."""
        return min(self.size - 1, 1)

    def _view_ledger(self) -> None:
        for key, value in self.ledger.items():
            if isinstance(value, torch.Tensor):  # trainers move all tensors of a state to the parameters' device
                self.ledger[key] = value.to("cpu", torch.float64)
        self.gram: Array = self.ledger["gram"].numpy()
        self.offsets: Array = self.ledger["offsets"].numpy()
        self.alpha: Array = self.ledger["alpha"].numpy()
        self.lr: Array = self.ledger["lr"].numpy()

    def _start_dual(self) -> None:
        self._dual = IncrementalDual(self.size)
        for _ in range(self._bounds):  # offsets are measured from the bound, which is the first piece of the dual
            self._dual.add(np.zeros(1), 0.0)

    def _dual_row(self, n: int) -> Array:
        """Row ``n`` of ``Q`` as the dual wants it, with the bound's zero in front."""
        return np.concatenate((np.zeros(self._bounds), self.lr @ self.gram[:, n, : n + 1]))


def _polyak_step(above_bound: float, squared_norm: float) -> float:
    """The learning rate for which the step without a cap, ``(loss - bound) / |g|^2``, has the weight 1."""
    step = max(above_bound, 0.0) / squared_norm if squared_norm > 0.0 else 0.0
    return step if math.isfinite(step) else 0.0


def _kind(support: tuple[int, ...], size: int) -> str:
    if size in _KINDS:
        return _KINDS[size][support]
    return "+".join("B" if i == size - 1 else str(i) for i in support)
