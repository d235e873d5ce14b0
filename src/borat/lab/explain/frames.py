"""Frames of an optimizer on one weight: every batch of a few updates, for each setting of the page's sliders.

The numbers come from :class:`borat.BORAT` and :class:`borat.FreeBORAT` themselves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from borat import BORAT, FreeBORAT

SIZES = (2, 3, 4, 5)
CALLS = 8
"""Number of batches of BORAT that are shown."""
FREE_CALLS = 48
"""And of FreeBORAT, whose first steps are short."""


@dataclass(frozen=True)
class Example:
    """Losses of one weight with the lower bound 0. Batch ``k`` has the loss ``samples[k % len(samples)]``."""

    name: str
    formula: str
    samples: tuple[Callable[[Tensor], Tensor], ...]
    window: tuple[float, float]
    highest: float
    rates: tuple[float, ...]
    starts: tuple[float, ...]
    first_rate: float
    first_start: float
    first_size: int = 3

    def curve(self, sample: int, points: int = 121) -> Tensor:
        """The loss at equally spaced weights."""
        return self.samples[sample](torch.linspace(*self.window, points, dtype=torch.float64))


def _cubic(w: Tensor) -> Tensor:
    return w.square() - w.abs() ** 3


def _asymmetric(w: Tensor) -> Tensor:
    return w.exp() - w - 1


def _parabola(w: Tensor) -> Tensor:
    return w.square() / 2


def _mirrored(w: Tensor) -> Tensor:
    return _asymmetric(-w)


def _left(w: Tensor) -> Tensor:
    return (w + 1).square() / 2


def _right(w: Tensor) -> Tensor:
    return (w - 1).square() / 2


EXAMPLES = (
    Example(
        "two samples",
        "ℓ₁(w) = w²/2 and ℓ₂(w) = e⁻ʷ + w − 1 in turn",  # noqa: RUF001
        (_parabola, _mirrored),
        window=(-2.6, 2.9),
        highest=4.2,
        rates=(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0),
        starts=(-2.0, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0, 2.5),
        first_rate=5.0,
        first_start=2.0,
    ),
    Example(
        "convex",
        "f(w) = eʷ − w − 1",  # noqa: RUF001
        (_asymmetric,),
        window=(-3.4, 2.2),
        highest=4.2,
        rates=(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0),
        starts=(-3.0, -2.5, -2.0, -1.5, -1.0, 0.5, 1.0, 1.5),
        first_rate=5.0,
        first_start=1.5,
    ),
    Example(
        "not convex",
        "f(w) = w² − |w|³",  # noqa: RUF001
        (_cubic,),
        window=(-0.78, 0.78),
        highest=0.17,
        rates=(0.5, 1.0, 2.0, 5.0, 9.0, 12.0, 100.0),  # ALI-G jumps to and fro from 10 on
        starts=(-0.6, -0.45, -0.3, -0.15, 0.15, 0.3, 0.45, 0.6),
        first_rate=12.0,
        first_start=0.6,
    ),
    Example(
        "at odds",
        "ℓ₁(w) = (w − 1)²/2 and ℓ₂(w) = (w + 1)²/2 in turn",  # noqa: RUF001
        (_right, _left),  # together they are never below 1/2: the bound is out of reach
        window=(-2.6, 2.6),
        highest=4.2,
        rates=(0.1, 0.2, 0.5, 1.0, 5.0, 20.0),
        starts=(-2.0, -1.5, -0.5, 0.5, 1.5, 2.0),
        first_rate=5.0,
        first_start=2.0,
    ),
)


@dataclass(frozen=True)
class Frame:
    """The bundle after one batch.

    Attributes:
        sample: which of the example's losses the batch had.
        point: the weight at which it was measured; the centre, for the first piece of a bundle.
        loss: the loss there.
        slope: its derivative.
        alpha: the weights of the pieces so far, the bound's last.
        goal: the minimiser of the proximal model: the next trial point or, once the bundle is full, the new centre.
        kind: the paper's name of the update, if the bundle is full.
    """

    sample: int
    point: float
    loss: float
    slope: float
    alpha: tuple[float, ...]
    goal: float
    kind: str


@dataclass(frozen=True)
class FreeFrame:
    """The rolling bundle after one batch.

    Attributes:
        sample: which of the example's losses the batch had.
        point: ``y``, where it was measured.
        loss: the loss there.
        slope: its derivative.
        alpha: the weights of the newest pieces, oldest first, the target's last.
        target: the height that the step aims at.
        height: the value of the newest piece at the centre.
        width: the cap of the step over the metric, as lr is BORAT's; 0 without a step.
        centre: ``z`` before the step.
        goal: ``z`` after it: the minimiser of the proximal model.
        average: ``x`` after it, where :meth:`borat.FreeBORAT.eval` puts the model.
        next_point: ``y`` after it.
    """

    sample: int
    point: float
    loss: float
    slope: float
    alpha: tuple[float, ...]
    target: float
    height: float
    width: float
    centre: float
    goal: float
    average: float
    next_point: float


def trajectory(example: Example, lr: float, size: int, start: float, calls: int = CALLS) -> list[Frame]:
    """The first batches of BORAT with a bundle of ``size``."""
    w = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = BORAT([w], lr, size, momentum=0.0)
    frames = []
    for call in range(calls):
        sample, position, point = call % len(example.samples), optimizer.bundle_position, w.item()
        loss, slope = _batch(optimizer, w, example.samples[sample])
        *weights, bound = optimizer.state_dict()["param_groups"][0]["bundle"]["alpha"]
        alpha = (*weights[: position + 1], bound)
        kind = optimizer.last_step.kind if optimizer.last_step and optimizer.bundle_position == 0 else ""
        frames.append(Frame(sample, point, loss, slope, alpha, w.item(), kind))
    return frames


def free_trajectory(example: Example, size: int, start: float, calls: int = FREE_CALLS) -> list[FreeFrame]:
    """The first batches of FreeBORAT with a bundle of ``size`` and its defaults."""
    w = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = FreeBORAT([w], size)
    beta, _ = optimizer.param_groups[0]["betas"]
    frames = []
    for call in range(calls):
        sample, point = call % len(example.samples), w.item()
        centre = optimizer.state[w]["centre"].item() if call else point
        loss, slope = _batch(optimizer, w, example.samples[sample])
        step, goal = optimizer.last_step, optimizer.state[w]["centre"].item()
        assert step is not None
        assert step.target is not None
        assert isinstance(step.step_size, float)
        average = goal + (w.item() - goal) / beta  # eval()'s, which for this many optimizers would take a minute
        metric = optimizer.state[w]["rms"].item() + optimizer.defaults["eps"]
        width = step.step_size / (1.0 - step.alpha[-1]) / metric if step.step_size else 0.0
        model = (step.alpha, step.target, step.offsets[-2], width)
        frames.append(FreeFrame(sample, point, loss, slope, *model, centre, goal, average, w.item()))
    return frames


def _batch(optimizer: BORAT | FreeBORAT, w: nn.Parameter, sample: Callable[[Tensor], Tensor]) -> tuple[float, float]:
    """One batch; its loss and its slope."""
    optimizer.zero_grad()
    loss = sample(w)
    loss.backward()  # type: ignore[no-untyped-call]
    assert w.grad is not None
    slope = w.grad.item()
    with warnings.catch_warnings():  # the loss that is not convex falls below its bound far out
        warnings.simplefilter("ignore")
        optimizer.step(loss=loss)
    return loss.item(), slope
