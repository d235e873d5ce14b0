"""Description of an update, for users and logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from borat._numbers.dual import Array


@dataclass(frozen=True)
class StepInfo:
    """Description of the last completed update.

    Attributes:
        alpha: weight of each piece, oldest first, the constant piece last (``bundle_size=1`` has none).
        offsets: value of each piece at the centre, the constant piece last.
        dual_value: maximum of the dual, which is the minimum of the proximal problem.
        support: indices of the pieces with a positive weight.
        kind: for bundles of up to three, the paper's name of the subproblem (SGD, ESGD, ZERO, ALIG, EALIG, MAX2, MAX3);
            otherwise the support, with B for the constant piece, such as ``"0+2+B"``.
        step_norm: length of the step, before momentum, weight decay and projection.
        lr: learning rate; a tuple if there are several parameter groups.
        step_size: effective learning rate, the factor of the weighted mean gradient (in FreeBORAT's metric); a tuple if
            there are several parameter groups.
        target: value of the constant piece: the lower bound, or FreeBORAT's target. None if there is no such piece.
        gap: the gap that the step aims to close. For BORAT, the value of the newest piece at the centre minus the lower
            bound.
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
    3: {(0,): "SGD", (1,): "ESGD", (2,): "ZERO", (0, 2): "ALIG", (1, 2): "EALIG", (0, 1): "MAX2", (0, 1, 2): "MAX3"},
}
"""The paper's table of subproblems, by the number of pieces and the support."""


def describe(
    alpha: Array,
    offsets: Array,
    lr: Array,
    *,
    cap: float,
    dual_value: float,
    step_norm: float,
    gap: float,
    has_constant: bool = True,
) -> StepInfo:
    """Return the description of a step over pieces, the constant one last if there is one.

    Its size is ``lr * cap`` times the weight of the other pieces.
    """
    weights, values = tuple(alpha.tolist()), tuple(offsets.tolist())
    support = tuple(i for i, weight in enumerate(weights) if weight > 0.0)
    moving = cap * sum(weights[:-1] if has_constant else weights)
    return StepInfo(
        alpha=weights,
        offsets=values,
        dual_value=dual_value,
        support=support,
        kind=_kind_of(support, len(weights)),
        step_norm=step_norm,
        lr=_one_or_all(lr.tolist()),
        step_size=_one_or_all([rate * moving for rate in lr.tolist()]),
        target=values[-1] if has_constant else None,
        gap=gap,
    )


def _kind_of(support: tuple[int, ...], pieces: int) -> str:
    if pieces in _KINDS:
        return _KINDS[pieces][support]
    return "+".join("B" if i == pieces - 1 else str(i) for i in support)


def _one_or_all(values: Sequence[float]) -> float | tuple[float, ...]:
    return values[0] if len(values) == 1 else tuple(values)
