"""What the optimizer keeps of each parameter, and how a bundle moves it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from borat.vectors import FUSED_DEVICES, combine, descend, descend_with_momentum, weighted_sum

_SMALL = 2**14
"""Tensors of at most this many elements are multiplied together: calling the kernels costs more than copying."""


class Slot:
    """One parameter and its state: the centre, the gradients of the open bundle, the velocity.

    All are seen as real tensors in the dense layout of the parameter. The gradient of the last piece is still in
    ``param.grad`` when a bundle is finished, so that ``N - 2`` rows are enough for ``N - 1`` pieces.
    """

    __slots__ = ("centre", "key", "layout", "matrix", "param", "rows", "state")

    def __init__(self, param: Tensor, group: int, state: dict[str, Any], bundle_size: int) -> None:
        self.param = param
        self.state = state
        self.key = (group, param.device, param.dtype)
        self.layout = _dense_strides(self.weights)
        if bundle_size > 2:
            if "centre" not in state:
                state["centre"] = torch.zeros_like(param)
                state["gradients"] = _rows_like(param, bundle_size - 2)
                state["active"] = 0
            self.centre = _as_real(state["centre"])
            self.rows = _as_real(state["gradients"]).unbind()
            size = self.centre.numel()
            self.matrix = _as_real(state["gradients"]).as_strided((bundle_size - 2, size), (size, 1))

    @property
    def weights(self) -> Tensor:
        return _as_real(self.param)

    @property
    def velocity(self) -> Tensor:
        if "velocity" not in self.state:
            self.state["velocity"] = torch.zeros_like(self.param)
            self.state["velocity_scale"] = 0.0
        return _as_real(self.state["velocity"])

    def gradient(self) -> Tensor:
        """The gradient; zero where a parameter of the open bundle has none this time."""
        grad, weights = self.param.grad, self.weights
        if grad is not None:
            grad = _as_real(grad if grad.layout is torch.strided else grad.to_dense())
            if grad.stride() == self.layout and grad.dtype == weights.dtype:
                return grad
        laid_out = torch.empty_strided(weights.shape, self.layout, dtype=weights.dtype, device=weights.device)
        return laid_out.zero_() if grad is None else laid_out.copy_(grad)


@dataclass
class Part:
    """Slots that one kernel call can take: same parameter group, device, dtype and unit of the velocity."""

    group: int
    slots: list[Slot] = field(default_factory=list)

    @cached_property
    def weights(self) -> list[Tensor]:
        return [slot.weights for slot in self.slots]

    @cached_property
    def centre(self) -> list[Tensor]:
        return [slot.centre for slot in self.slots]

    @cached_property
    def gradients(self) -> list[Tensor]:
        return [slot.gradient() for slot in self.slots]

    @cached_property
    def fused(self) -> bool:
        """Whether the fused kernels, which see only runs of memory, may be used."""
        return self.weights[0].device.type in FUSED_DEVICES and all(
            w.stride() == slot.layout for w, slot in zip(self.weights, self.slots, strict=True)
        )

    def row(self, n: int) -> list[Tensor]:
        """The gradients of piece ``n`` of the open bundle."""
        return [slot.rows[n] for slot in self.slots]

    def products(self, n: int) -> Tensor:
        """``<g, g_k>`` for the first ``n`` pieces and then ``<g, g>``: summed over the slots, in float64."""
        vectors = [g.as_strided((g.numel(),), (1,)) for g in self.gradients]
        small = [i for i, g in enumerate(vectors) if len(g) <= _SMALL]
        pairs = [(g, self.slots[i].matrix[:n] if n else None) for i, g in enumerate(vectors) if len(g) > _SMALL]
        if small:
            rows = torch.cat([self.slots[i].matrix[:n] for i in small], dim=1) if n else None
            pairs.append((torch.cat([vectors[i] for i in small]), rows))
        own, cross = [], []
        for g, rows in pairs:
            g = _at_least_float32(g)
            own.append(torch.dot(g, g))
            if rows is not None:
                cross.append(torch.mv(_at_least_float32(rows), g))
        total = torch.stack(own).sum(0, keepdim=True, dtype=torch.float64)
        return torch.cat((torch.stack(cross).sum(0, dtype=torch.float64), total)) if n else total

    def join(self, position: int) -> None:
        """Let all slots take part in the open bundle; its pieces so far did not depend on those that join.

        A bundle with a single linear piece needs no centre, and nobody joins it.
        """
        if "active" not in self.slots[0].state:
            return
        joining = [slot for slot in self.slots if position == 0 or not slot.state["active"]]
        if joining:
            combine([slot.weights for slot in joining], out=[slot.centre for slot in joining])
        for slot in joining:
            slot.state["active"] = 1
            if position:
                slot.matrix[:position].zero_()

    def to_centre(self) -> None:
        combine(self.centre, out=self.weights)

    def to_trial(self, steps: Sequence[float], *, replay: bool = False) -> None:
        """Put the weights at ``centre - sum of step * gradient`` and keep the gradient of the last piece in its row.

        The first gradient is measured at the centre, so that the weights are there already. To ``replay`` is to come
        back to this trial point later, when the gradient is in its row and the weights are anywhere.
        """
        last = len(steps) - 1
        if last > 0 or replay:
            combine(self.centre, [(-steps[k], self.row(k)) for k in range(last) if steps[k]], out=self.weights)
        if replay:
            descend(self.weights, self.row(last), steps[last], self.fused)
        else:
            descend(self.weights, self.gradients, steps[last], self.fused, keep=self.row(last))

    def move_centre(self, steps: Sequence[float], momentum: float, *, flush: bool = False) -> None:
        """``u = -sum of step * gradient; v = momentum * v + u; weights = centre + u + momentum * v``.

        The gradient of the last piece is the parameters' own; to ``flush`` is to end early, when it is in its row.
        """
        last = len(steps) - 1
        terms = [(steps[k], self.row(k)) for k in range(last) if steps[k]]
        if steps[last] or not terms:
            terms.append((steps[last], self.row(last) if flush else self.gradients))
        centre = self._leave_bundle()
        if momentum == 0.0:
            combine(centre, [(-step, x) for step, x in terms], out=self.weights)
            return
        step, direction = weighted_sum(terms)
        combine(centre, out=self.weights)
        velocity = [slot.velocity for slot in self.slots]
        scale = self.slots[0].state["velocity_scale"]
        scale = descend_with_momentum(
            self.weights, direction, velocity, step=step, momentum=momentum, scale=scale, fused=self.fused
        )
        for slot in self.slots:
            slot.state["velocity_scale"] = scale

    def _leave_bundle(self) -> list[Tensor]:
        """The point to move from. A bundle with a single linear piece never leaves it."""
        if "centre" not in self.slots[0].state:
            return self.weights
        for slot in self.slots:
            slot.state["active"] = 0
        return self.centre


def partition(slots: Iterable[Slot]) -> list[Part]:
    """Group slots into parts."""
    parts: dict[Any, Part] = {}
    for slot in slots:
        key = (slot.key, slot.state.get("velocity_scale"))
        part = parts.get(key)
        if part is None:
            part = parts[key] = Part(slot.key[0])
        part.slots.append(slot)
    return list(parts.values())


def _as_real(x: Tensor) -> Tensor:
    return torch.view_as_real(x) if x.is_complex() else x


def _dense_strides(x: Tensor) -> tuple[int, ...]:
    """The strides of a dense copy of ``x``: its own, if it is dense itself."""
    return torch.empty_like(x, device="meta").stride()


def _rows_like(param: Tensor, rows: int) -> Tensor:
    """Zeros for ``rows`` gradients, each in the layout of the parameter."""
    size, strides = (rows, *param.shape), (param.numel(), *_dense_strides(param))
    return torch.empty_strided(size, strides, dtype=param.dtype, device=param.device).zero_()


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
