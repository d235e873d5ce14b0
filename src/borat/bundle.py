"""The open bundle: its Gram matrix, its offsets and the solution of its dual.

Notation of the paper: piece ``n`` has the gradient ``g_n`` and the offset ``b_n``; ``Q[n, k] = sum over groups of
lr * <g_n, g_k>``; ``alpha`` are the weights of the pieces, the bound's last. All of it are a few numbers on the host.
In checkpoints they are plain numbers and lists, so that one taken in the middle of a bundle continues as if nothing
had happened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from borat.dual import Array, IncrementalDual
from borat.dual_numpy import NumpyDual


@dataclass(frozen=True)
class StepInfo:
    """What the last completed update did.

    Attributes:
        alpha: the weight of each piece, oldest first, that of the constant piece last (``bundle_size=1`` has none).
        offsets: the value of each piece at the centre, that of the constant piece last.
        dual_value: the largest dual value, which is the smallest value of the proximal problem.
        support: the pieces with a positive weight.
        kind: the paper's name of that subproblem for bundles of up to three (SGD, ESGD, ZERO, ALIG, EALIG, MAX2,
            MAX3), otherwise the support with the constant piece as B, such as ``"0+2+B"``.
        step_norm: the length of the step, before momentum, weight decay and projection.
        lr: the learning rate; one for each parameter group, if there are several.
        step_size: the effective learning rate: what multiplies the mean gradient (in FreeBORAT's metric). One for each
            parameter group, if there are several.
        target: the value of the constant piece: the lower bound, or the level that FreeBORAT aims at. None without one.
        gap: how far the newest piece is above the lower bound, at the centre.
    """

    alpha: tuple[float, ...]
    offsets: tuple[float, ...]
    dual_value: float
    support: tuple[int, ...]
    kind: str
    step_norm: float
    lr: float | tuple[float, ...]
    step_size: float | tuple[float, ...]
    target: float | None
    gap: float


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
"""The paper's table of subproblems: by the number of pieces and the support."""


def kind_of(support: tuple[int, ...], pieces: int) -> str:
    """The name of a subproblem; the last of the pieces is the constant one."""
    if pieces in _KINDS:
        return _KINDS[pieces][support]
    return "+".join("B" if i == pieces - 1 else str(i) for i in support)


def one_or_all(values: Sequence[float]) -> float | tuple[float, ...]:
    """A number of each parameter group, as users read it: just the number, where there is one group."""
    return values[0] if len(values) == 1 else tuple(values)


def are_finite(numbers: Array) -> bool:
    """Python is faster than NumPy to ask that of a few numbers."""
    return all(map(math.isfinite, numbers.ravel().tolist()))


class Bundle:
    """The arithmetic of BORAT's open bundle.

    Args:
        size: the number of pieces, the bound included.
        groups: the number of parameter groups.
        numbers: where to go on, as :meth:`numbers` gave them; a bundle that has seen no batch by default.
    """

    def __init__(self, size: int, groups: int, numbers: Mapping[str, Any] | None = None) -> None:
        pieces = max(size - 1, 1)
        self.size = size
        self._bounds = min(size - 1, 1)
        """The number of constant pieces. A bundle of one has none."""
        self.gram = np.zeros((groups, pieces, pieces))
        self.offsets = np.zeros(pieces)
        self.alpha = np.zeros(size)
        self.lr = np.zeros(groups)
        self.lower_bound = 0.0
        self.position = 0
        """The number of pieces in the bundle."""
        self.dropped = 0
        self.evaluating = False
        self.has_cap = True
        """Whether the step is at most ``lr`` long, and not the Polyak step whatever its length."""
        self.precise = True
        """Whether the dual is NumPy's. The compiled one is faster and as exact, but has other last bits from three
        pieces on, which would change trajectories of float64 parameters that were published."""
        if numbers:
            self._restore(numbers)
        self._start_dual()
        for n in range(self.position):
            self._dual.add(self._row(n), self.offsets[n])

    def numbers(self) -> dict[str, Any]:
        """All of it, as plain numbers and lists."""
        return {
            "gram": self.gram.tolist(),
            "offsets": self.offsets.tolist(),
            "alpha": self.alpha.tolist(),
            "lr": self.lr.tolist(),
            "lower_bound": self.lower_bound,
            "position": self.position,
            "dropped": self.dropped,
            "evaluating": int(self.evaluating),
            "precise": int(self.precise),
        }

    def _restore(self, numbers: Mapping[str, Any]) -> None:
        for key in ("gram", "offsets", "alpha", "lr"):
            values, own = np.asarray(numbers[key], dtype=np.float64), getattr(self, key)
            if values.shape != own.shape:
                raise ValueError(f"the bundle's {key} must have the shape {own.shape}, got {values.shape}")
            own[...] = values
        self.lower_bound = float(numbers["lower_bound"])
        self.position, self.dropped = int(numbers["position"]), int(numbers["dropped"])
        self.evaluating = bool(numbers["evaluating"])
        self.precise = bool(numbers.get("precise", True))

    @property
    def has_pieces(self) -> bool:
        return self.position > 0

    @property
    def is_full(self) -> bool:
        return self.position == len(self.offsets)

    def open(self, lr: Sequence[float], lower_bound: float, *, precise: bool = True) -> None:
        """Start a bundle; the arguments hold until it is closed."""
        self.lr[:] = lr
        self.lower_bound = lower_bound
        self.precise = precise
        self.has_cap = not math.isinf(lr[0])
        self._start_dual()

    def row(self, loss: float, products: Array) -> Array | None:
        """The next piece's row of ``Q``, with the bound's zero in front; None if the gradient is too long for it.

        Args:
            loss: the loss at the trial point.
            products: ``<g_n, g_k>`` for each group (row) and ``k <= n``.
        """
        if not (math.isfinite(loss) and are_finite(products)):
            return None
        n = self.position
        self.gram[:, n, : n + 1] = self.gram[:, : n + 1, n] = products
        if not self.has_cap:
            self.lr[:] = _polyak_step(loss - self.lower_bound, float(products.sum()))
        with np.errstate(over="ignore", invalid="ignore"):
            row = self._row(n)
        return row if are_finite(row) else None

    def add(self, loss: float, row: Array) -> None:
        """Append the piece measured at the trial point, with its :meth:`row`, and solve the dual again."""
        n = self.position
        # The trial point is w - sum of alpha_k * lr * g_k, hence <g_n, trial - w> = -sum of alpha_k * Q[n, k].
        self.offsets[n] = loss - self.lower_bound + self.alpha[:n] @ row[self._bounds : -1]
        weights = self._dual.add(row, self.offsets[n])
        self.alpha[: n + 1] = weights[self._bounds :]
        self.alpha[n + 1 : n + 1 + self._bounds] = weights[: self._bounds]
        self.position = n + 1

    def close(self) -> None:
        """Forget the pieces."""
        self.position = 0

    def steps(self, group: int) -> list[float]:
        """``lr * alpha``: how far the solution goes against each piece's gradient."""
        steps: list[float] = (self.lr[group] * self.alpha[: self.position]).tolist()
        return steps

    def description(self) -> Callable[[], StepInfo]:
        """The solution for people and logs, described when they look, whatever has become of the bundle by then."""
        n = self.position
        return partial(
            _describe,
            self.alpha[: n + self._bounds].copy(),
            self.offsets[:n].copy(),
            self.gram[:, :n, :n].copy(),
            self.lr.copy(),
            self.lower_bound,
            self._dual.value,
            self.has_cap,
        )

    def add_group(self) -> None:
        """Make room for one more parameter group, which has no part in the open bundle so far."""
        self.gram = np.concatenate((self.gram, np.zeros((1, *self.gram.shape[1:]))))
        self.lr = np.append(self.lr, 0.0)

    def _start_dual(self) -> None:
        self._dual = IncrementalDual(self.size, NumpyDual if self.precise and self.size > 2 else None)
        for _ in range(self._bounds):  # offsets are measured from the bound, which is the first piece of the dual
            self._dual.add(np.zeros(1), 0.0)

    def _row(self, n: int) -> Array:
        row = np.zeros(self._bounds + n + 1)
        row[self._bounds :] = self.lr @ self.gram[:, n, : n + 1]
        return row


def _describe(
    alpha: Array, offsets: Array, gram: Array, lr: Array, bound: float, dual_value: float, has_cap: bool
) -> StepInfo:
    n, weights, rates = len(offsets), tuple(alpha.tolist()), lr.tolist()
    bounds = len(weights) - n
    support = tuple(i for i, weight in enumerate(weights) if weight > 0.0)
    squared_norms = alpha[:n] @ gram @ alpha[:n]
    return StepInfo(
        alpha=weights,
        offsets=tuple((offsets + bound).tolist()) + (bound,) * bounds,
        dual_value=dual_value + bound,
        support=support,
        kind="ALIG" if support == (0,) and not has_cap else kind_of(support, len(weights)),
        step_norm=math.sqrt(max(float(lr**2 @ squared_norms), 0.0)),
        lr=one_or_all(rates),
        step_size=one_or_all([rate * sum(weights[:n]) for rate in rates]),
        target=bound if bounds else None,
        gap=float(offsets[-1]),
    )


def _polyak_step(above_bound: float, squared_norm: float) -> float:
    """The learning rate for which the step without a cap, ``(loss - bound) / |g|^2``, has the weight 1."""
    step = max(above_bound, 0.0) / squared_norm if squared_norm > 0.0 else 0.0
    return step if math.isfinite(step) else 0.0
