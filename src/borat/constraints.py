r"""Projections onto feasible sets, each documented by its argmin.

A constraint is any callable that changes a list of parameters in place. The classes here project all parameters
*jointly*, as one vector :math:`w`: the set constrains the whole model, not each layer. Sums are computed in float64.

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
from typing import Any

import torch
from torch import Tensor

from borat._checks import check_positive, is_number
from borat._state import sharding

__all__ = ["Box", "L1Ball", "L2Ball", "NonNegative", "Projection", "Simplex"]


class Projection(ABC):
    """Base class of Euclidean projections, which change parameters in place."""

    def __call__(self, params: Tensor | Iterable[Tensor]) -> None:
        """Replace the parameters by the nearest point in the set."""
        tensors = [params] if isinstance(params, Tensor) else list(params)
        with torch.no_grad():
            self._project(tensors)

    @abstractmethod
    def _project(self, tensors: list[Tensor]) -> None: ...


@dataclass(frozen=True)
class L2Ball(Projection):
    r""":math:`\arg\min_u \|u - w\|_2` subject to :math:`\|u\|_2 \le r`.

    This is the regularisation of the BORAT paper. Its text has :math:`\|w\|_2^2 \le r`, but its code and its values
    of :math:`r` bound the norm, as this class does.
    """

    radius: float

    def __post_init__(self) -> None:
        check_positive("radius", self.radius)

    def _project(self, tensors: list[Tensor]) -> None:
        if _are_on_device(tensors):
            _scale_on_device(tensors, self.radius)
            return
        norm = math.sqrt(_reduce(_squared_norm, tensors))
        if norm > self.radius:
            torch._foreach_mul_(_local(tensors), self.radius / norm)


@dataclass(frozen=True)
class L1Ball(Projection):
    r""":math:`\arg\min_u \|u - w\|_2` subject to :math:`\|u\|_1 \le r`: soft-thresholding, which yields zeros."""

    radius: float

    def __post_init__(self) -> None:
        check_positive("radius", self.radius)

    def _project(self, tensors: list[Tensor]) -> None:
        if _are_on_device(tensors):
            magnitudes = _vector([w.abs() for w in tensors])
            excess = _excess_on_device(magnitudes, self.radius, torch.abs)
            is_outside = magnitudes.sum() > self.radius
            for w in tensors:
                w.copy_(torch.where(is_outside.to(w.device), w.sgn() * excess(w), w))
            return
        if _reduce(torch.abs, tensors) <= self.radius:
            return
        excess = _excess(tensors, self.radius, torch.abs)
        for w in _local(tensors):
            w.copy_(w.sgn() * excess(w))


@dataclass(frozen=True)
class Box(Projection):
    r""":math:`\arg\min_u \|u - w\|_2` subject to :math:`l \le u_i \le h`: clamping."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not is_number(self.low) or not is_number(self.high) or self.low > self.high:
            raise ValueError(f"low and high must be numbers with low <= high, got low={self.low!r}, high={self.high!r}")

    def _project(self, tensors: list[Tensor]) -> None:
        _check_real(tensors, "Box")
        torch._foreach_clamp_min_(_local(tensors), self.low)
        torch._foreach_clamp_max_(_local(tensors), self.high)


@dataclass(frozen=True)
class NonNegative(Projection):
    r""":math:`\arg\min_u \|u - w\|_2` subject to :math:`u_i \ge 0`."""

    def _project(self, tensors: list[Tensor]) -> None:
        _check_real(tensors, "NonNegative")
        torch._foreach_clamp_min_(_local(tensors), 0.0)


@dataclass(frozen=True)
class Simplex(Projection):
    r""":math:`\arg\min_u \|u - w\|_2` subject to :math:`u_i \ge 0` and :math:`\sum_i u_i = s`."""

    total: float = 1.0

    def __post_init__(self) -> None:
        check_positive("total", self.total)

    def _project(self, tensors: list[Tensor]) -> None:
        _check_real(tensors, "Simplex")
        if _are_on_device(tensors):
            excess = _excess_on_device(_vector(tensors), self.total, lambda w: w)
        else:
            excess = _excess(tensors, self.total, lambda w: w)
        for w in _local(tensors):
            w.copy_(excess(w))


def _excess(tensors: list[Tensor], total: float, magnitude: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the function ``max(magnitude - t, 0)``, with ``t`` such that its sum over all tensors is ``total``.

    Newton's method on a convex, decreasing, piecewise linear function reaches the root in finitely many passes, without
    the copy and the sorting of the textbook method. It starts where the largest element alone has the sum ``total``.
    Magnitudes and threshold are measured relative to that element, because the difference of two large numbers would
    lose all digits.
    """
    largest = _reduce(lambda w: _largest(magnitude(w)), tensors, largest=True)
    threshold = -total

    def excess(w: Tensor) -> Tensor:
        return (magnitude(w).to(_sum_dtype(w)) - largest - threshold).clamp_(min=0.0)

    while True:
        above = _reduce(lambda w: excess(w) > 0.0, tensors)
        new = threshold + (_reduce(excess, tensors) - total) / max(above, 1.0)
        if not new > threshold:
            return excess
        threshold = new


def _scale_on_device(tensors: list[Tensor], radius: float) -> None:
    """Scale to the norm ``radius`` without a device sync, in two operations for each device and dtype."""
    places: dict[Any, list[Tensor]] = {}
    for w in tensors:
        places.setdefault((w.device, w.dtype), []).append(torch.view_as_real(w) if w.is_complex() else w)
    norm = torch.linalg.vector_norm(
        _vector(
            [norm for members in places.values() for norm in torch._foreach_norm(members, 2, _sum_dtype(members[0]))]
        )
    )
    scale = torch.where(norm > radius, radius / norm, 1.0)
    for members in places.values():
        torch._foreach_mul_(members, scale.to(members[0].device))


def _excess_on_device(
    magnitudes: Tensor, total: float, magnitude: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """Return the same function without a device sync, by sorting: the number of Newton's passes is not known before."""
    largest = magnitudes.max()
    below = (magnitudes - largest).sort(descending=True).values
    count = torch.arange(1, len(below) + 1, device=below.device)
    is_above = below * count > below.cumsum(0) - total
    threshold = (torch.where(is_above, below, 0.0).sum() - total) / is_above.sum()

    def excess(w: Tensor) -> Tensor:
        return (magnitude(w).to(_sum_dtype(w)) - largest.to(w.device) - threshold.to(w.device)).clamp_(min=0.0)

    return excess


def _vector(tensors: list[Tensor]) -> Tensor:
    """Return all elements as one vector."""
    first = tensors[0]
    return torch.cat([w.reshape(-1).to(first.device, _sum_dtype(first)) for w in tensors])


def _are_on_device(tensors: list[Tensor]) -> bool:
    """Return True if reading a value would sync a device or break a compiled graph."""
    if any(sharding.is_sharded(w) for w in tensors):
        return False
    return torch.compiler.is_compiling() or any(w.device.type != "cpu" for w in tensors)


def _reduce(function: Callable[[Tensor], Tensor], tensors: list[Tensor], *, largest: bool = False) -> float:
    """Return the sum or the maximum of ``function`` over all elements, including those of other processes.

    It takes one transfer for each device and, for sharded tensors, one small collective for each mesh.
    """
    places: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        places.setdefault((tensor.device, sharding.mesh_of(tensor)), []).append(tensor)
    combine = torch.amax if largest else torch.sum
    results = []
    for members in places.values():
        values = [(function(w), _sum_dtype(w)) for w in _local(members)]
        parts = [v.to(dtype) if largest else v.sum(dtype=dtype) for v, dtype in values]
        here = combine(torch.stack(parts))
        results.append(float(sharding.reduce_over_mesh(here, members[0], largest=largest)))
    return max(results) if largest else sum(results)


def _local(tensors: list[Tensor]) -> list[Tensor]:
    return [sharding.local(w) for w in tensors]


def _largest(w: Tensor) -> Tensor:
    return w.amax() if w.numel() else w.new_tensor(-math.inf)


def _squared_norm(w: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(w, dtype=_sum_dtype(w).to_complex() if w.is_complex() else _sum_dtype(w))
    return norm.square()


def _sum_dtype(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64


def _check_real(tensors: list[Tensor], name: str) -> None:
    if any(w.is_complex() for w in tensors):
        raise ValueError(f"{name} needs real parameters, got complex ones")
