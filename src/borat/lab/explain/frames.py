"""Frames of an optimizer on one weight: the batches of a few updates, for each setting of the page's sliders.

All numbers come from :class:`borat.BORAT` and :class:`borat.FreeBORAT`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from borat import BORAT, FreeBORAT

SIZES = (2, 3, 4, 5)
CALLS = 8
"""Number of batches shown for BORAT."""
FREE_CALLS = 48
"""Number of batches shown for FreeBORAT, whose first steps are short."""
RATES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0)


@dataclass(frozen=True)
class Example:
    """Losses of one weight, with the lower bound 0. Batch ``k`` has the loss ``samples[k % len(samples)]``."""

    name: str
    formula: str
    samples: tuple[Callable[[Tensor], Tensor], ...]
    window: tuple[float, float]
    highest: float
    """Largest loss in the drawing."""
    starts: tuple[float, ...]
    first: tuple[float, int, float]
    """Learning rate, bundle size and start that the page shows first."""
    rates: tuple[float, ...] = RATES

    def curve(self, sample: int, points: int = 121) -> Tensor:
        """Return the loss at equally spaced weights."""
        return self.samples[sample](torch.linspace(*self.window, points, dtype=torch.float64))


EXAMPLES = (
    Example(
        "two samples",
        "ℓ₁(w) = w²/2 and ℓ₂(w) = e⁻ʷ + w − 1 in turn",  # noqa: RUF001
        (lambda w: w.square() / 2, lambda w: (-w).exp() + w - 1),
        window=(-2.6, 2.9),
        highest=4.2,
        starts=(-2.0, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0, 2.5),
        first=(5.0, 3, 2.0),
    ),
    Example(
        "convex",
        "f(w) = eʷ − w − 1",  # noqa: RUF001
        (lambda w: w.exp() - w - 1,),
        window=(-3.4, 2.2),
        highest=4.2,
        starts=(-3.0, -2.5, -2.0, -1.5, -1.0, 0.5, 1.0, 1.5),
        first=(5.0, 3, 1.5),
    ),
    Example(
        "not convex",
        "f(w) = w² − |w|³",  # noqa: RUF001
        (lambda w: w.square() - w.abs() ** 3,),
        window=(-0.78, 0.78),
        highest=0.17,
        starts=(-0.6, -0.45, -0.3, -0.15, 0.15, 0.3, 0.45, 0.6),
        first=(12.0, 3, 0.6),
        rates=(0.5, 1.0, 2.0, 5.0, 9.0, 12.0, 100.0),  # ALI-G oscillates from 10 on
    ),
    Example(
        "at odds",
        "ℓ₁(w) = (w − 1)²/2 and ℓ₂(w) = (w + 1)²/2 in turn",  # noqa: RUF001
        (lambda w: (w - 1).square() / 2, lambda w: (w + 1).square() / 2),  # their mean is at least 1/2, not 0
        window=(-2.6, 2.6),
        highest=4.2,
        starts=(-2.0, -1.5, -0.5, 0.5, 1.5, 2.0),
        first=(5.0, 3, 2.0),
        rates=(0.1, 0.2, 0.5, 1.0, 5.0, 20.0),
    ),
)


class Frame(NamedTuple):
    """The bundle after one batch. The page's script reads the fields in this order."""

    sample: int  # index of the batch's loss
    point: float  # weight at which it was measured; the centre, for the first piece of a bundle
    loss: float
    slope: float
    goal: float  # minimiser of the proximal model: the next trial point, or the new centre if the bundle is full
    kind: str  # the paper's name of the update, if the bundle is full
    alpha: tuple[float, ...]  # weights of the pieces so far, the bound's last


class FreeFrame(NamedTuple):
    """The rolling bundle after one batch. The page's script reads the fields in this order."""

    sample: int  # index of the batch's loss
    point: float  # y, where it was measured
    centre: float  # z before the step
    loss: float
    slope: float
    target: float  # height at which the step aims
    width: float  # cap of the step over the metric, like BORAT's lr; 0 without a step
    goal: float  # z after the step: minimiser of the proximal model
    average: float  # x after the step, where eval() puts the model
    next_point: float  # y after the step
    alpha: tuple[float, ...]  # weights of the newest pieces, oldest first, the target's last
    older: tuple[float, ...]  # heights of the older pieces where they were measured


def trajectory(example: Example, lr: float, size: int, start: float, calls: int = CALLS) -> list[Frame]:
    """Return the first batches of BORAT with a bundle of ``size``."""
    w = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = BORAT([w], lr, size, momentum=0.0)
    frames = []
    for call in range(calls):
        sample, position, point = call % len(example.samples), optimizer.bundle_position, w.item()
        loss, slope = _take_batch(optimizer, w, example.samples[sample])
        weights = optimizer.state_dict()["param_groups"][0]["bundle"]["alpha"][: position + 1]
        kind = optimizer.last_step.kind if optimizer.last_step and optimizer.bundle_position == 0 else ""
        frames.append(Frame(sample, point, loss, slope, w.item(), kind, (*weights, max(1.0 - sum(weights), 0.0))))
    return frames


def free_trajectory(example: Example, size: int, start: float, calls: int = FREE_CALLS) -> list[FreeFrame]:
    """Return the first batches of FreeBORAT with a bundle of ``size`` and its defaults."""
    w = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = FreeBORAT([w], size)
    beta, _ = optimizer.param_groups[0]["betas"]
    frames: list[FreeFrame] = []
    for call in range(calls):
        sample, point = call % len(example.samples), w.item()
        centre = optimizer.state[w]["centre"].item() if call else point
        loss, slope = _take_batch(optimizer, w, example.samples[sample])
        step, goal = optimizer.last_step, optimizer.state[w]["centre"].item()
        assert step is not None
        assert step.target is not None
        assert isinstance(step.step_size, float)
        average = goal + (w.item() - goal) / beta  # as in eval(), which would take a minute for all frames
        metric = optimizer.state[w]["rms"].item() + optimizer.defaults["eps"]
        width = step.step_size / (1.0 - step.alpha[-1]) / metric if step.step_size else 0.0
        # FreeBORAT may scale the losses in the values of its pieces. Drawn, the newest piece touches its loss.
        up = loss + slope * (centre - point) - step.offsets[-2]
        pieces = [(frame.point, frame.slope) for frame in frames[call + 2 - len(step.alpha) :]]
        older = tuple(up + value - s * (centre - y) for value, (y, s) in zip(step.offsets[:-2], pieces, strict=True))
        before, model = (sample, point, centre, loss, slope), (step.target + up, width)
        frames.append(FreeFrame(*before, *model, goal, average, w.item(), step.alpha, older))
    return frames


def _take_batch(
    optimizer: BORAT | FreeBORAT, w: nn.Parameter, sample: Callable[[Tensor], Tensor]
) -> tuple[float, float]:
    """Take a step on one batch; return its loss and slope."""
    optimizer.zero_grad()
    loss = sample(w)
    loss.backward()  # type: ignore[no-untyped-call]
    assert w.grad is not None
    slope = w.grad.item()
    with warnings.catch_warnings():  # far from the minimum, the non-convex loss falls below its bound
        warnings.simplefilter("ignore")
        optimizer.step(loss=loss)
    return loss.item(), slope
