r"""Projections onto feasible sets, each documented by its argmin.

A constraint is any callable that changes a list of parameters in place. Those here project all parameters *jointly*,
as one vector :math:`w`: the set constrains the model, not each of its layers. Sums are taken in float64.

Example:
    >>> import torch
    >>> w = torch.tensor([3.0, 4.0])
    >>> L2Ball(radius=1.0)([w])
    >>> w
    tensor([0.6000, 0.8000])
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from borat.checks import is_number

__all__ = ["Box", "L1Ball", "L2Ball", "NonNegative", "Projection", "Simplex"]


class Projection(ABC):
    """A Euclidean projection of parameters, in place."""

    def __call__(self, params: Tensor | Iterable[Tensor]) -> None:
        """Replace the parameters by the nearest point of the set."""
        tensors = [params] if isinstance(params, Tensor) else list(params)
        with torch.no_grad():
            self._project(tensors)

    @abstractmethod
    def _project(self, tensors: list[Tensor]) -> None: ...


@dataclass(frozen=True)
class L2Ball(Projection):
    r""":math:`\arg\min_u \|u - w\|_2` subject to :math:`\|u\|_2 \le r`.

    This is the paper's regularisation. Its text writes :math:`\|w\|_2^2 \le r`, but its code and its values of
    :math:`r` bound the norm, and so does this class.
    """

    radius: float

    def __post_init__(self) -> None:
        _check_positive("radius", self.radius)

    def _project(self, tensors: list[Tensor]) -> None:
        norm = math.sqrt(_total(_squared_norm, tensors))
        if norm > self.radius:
            torch._foreach_mul_(tensors, self.radius / norm)


@dataclass(frozen=True)
class L1Ball(Projection):
    r""":math:`\arg\min_u \|u - w\|_2` subject to :math:`\|u\|_1 \le r`: soft-thresholding, which makes sparse."""

    radius: float

    def __post_init__(self) -> None:
        _check_positive("radius", self.radius)

    def _project(self, tensors: list[Tensor]) -> None:
        if _total(torch.abs, tensors) <= self.radius:
            return
        magnitudes = [w.abs() for w in tensors]
        threshold = _threshold(magnitudes, self.radius, start=0.0)
        for w, magnitude in zip(tensors, magnitudes, strict=True):
            w.copy_(w.sgn() * (magnitude - threshold).clamp_(min=0.0))


@dataclass(frozen=True)
class Box(Projection):
    r""":math:`\arg\min_u \|u - w\|_2` subject to :math:`l \le u_i \le h`: clamping."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not is_number(self.low) or not is_number(self.high) or self.low > self.high:
            raise ValueError(f"low and high must be numbers with low <= high, got low={self.low!r}, high={self.high!r}")

    def _project(self, tensors: list[Tensor]) -> None:
        _refuse_complex(tensors, "Box")
        torch._foreach_clamp_min_(tensors, self.low)
        torch._foreach_clamp_max_(tensors, self.high)


@dataclass(frozen=True)
class NonNegative(Projection):
    r""":math:`\arg\min_u \|u - w\|_2` subject to :math:`u_i \ge 0`."""

    def _project(self, tensors: list[Tensor]) -> None:
        _refuse_complex(tensors, "NonNegative")
        torch._foreach_clamp_min_(tensors, 0.0)


@dataclass(frozen=True)
class Simplex(Projection):
    r""":math:`\arg\min_u \|u - w\|_2` subject to :math:`u_i \ge 0` and :math:`\sum_i u_i = s`."""

    total: float = 1.0

    def __post_init__(self) -> None:
        _check_positive("total", self.total)

    def _project(self, tensors: list[Tensor]) -> None:
        _refuse_complex(tensors, "Simplex")
        largest = max(float(w.max()) for w in tensors if w.numel())
        threshold = _threshold(tensors, self.total, start=largest - self.total)
        for w in tensors:
            w.sub_(threshold).clamp_(min=0.0)


def _threshold(tensors: list[Tensor], total: float, start: float) -> float:
    """The ``t`` with ``sum of max(w - t, 0) = total``, from a start where the sum is at least ``total``.

    Newton's method on a convex, decreasing, piecewise linear function: it climbs to the root in finitely many passes,
    without the copy and the sorting that the textbook method needs.
    """
    threshold = start
    while True:
        excess = _total(partial(_excess, threshold=threshold), tensors) - total
        above = _total(partial(torch.gt, other=threshold), tensors)
        new = threshold + excess / max(above, 1.0)
        if not new > threshold:
            return threshold
        threshold = new


def _excess(w: Tensor, threshold: float) -> Tensor:
    return (w.to(_precise(w)) - threshold).clamp_(min=0.0)


def _total(function: Callable[[Tensor], Tensor], tensors: list[Tensor]) -> float:
    """The sum of ``function`` over all elements, with one transfer for each device."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            by_device.setdefault(tensor.device, []).append(function(tensor).sum(dtype=_precise(tensor)))
    return sum(float(torch.stack(parts).sum()) for parts in by_device.values())


def _squared_norm(w: Tensor) -> Tensor:
    w = torch.view_as_real(w) if w.is_complex() else w
    if w.dtype in (torch.float32, torch.float64):
        return torch.dot(w.flatten(), w.flatten())  # the fastest way to read memory once
    return w.to(_precise(w)).square()


def _precise(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64


def _check_positive(name: str, value: float) -> None:
    if not is_number(value) or not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be a positive, finite number, got {value!r}")


def _refuse_complex(tensors: list[Tensor], name: str) -> None:
    if any(w.is_complex() for w in tensors):
        raise ValueError(f"{name} needs real parameters, got complex ones")
