"""What the optimizer keeps of each parameter, and how a bundle moves it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from borat.vectors import FUSED_DEVICES, combine, descend, descend_with_momentum, weighted_sum


class Slot:
    """One parameter and its state: the centre, the gradients of the open bundle, the velocity.

    All are seen as real tensors in the dense layout of the parameter. The gradient of the last piece is still in
    ``param.grad`` when a bundle is finished, so that ``N - 2`` rows are enough for ``N - 1`` pieces.
    """

    __slots__ = ("layout", "param", "state")

    def __init__(self, param: Tensor, state: dict[str, Any], bundle_size: int) -> None:
        self.param = param
        self.state = state
        self.layout = _dense_strides(self.weights)
        if bundle_size > 2 and "centre" not in state:
            state["centre"] = torch.zeros_like(param)
            state["gradients"] = _rows_like(param, bundle_size - 2)
            state["active"] = 0

    @property
    def weights(self) -> Tensor:
        return _as_real(self.param)

    @property
    def centre(self) -> Tensor:
        return _as_real(self.state["centre"])

    @property
    def velocity(self) -> Tensor:
        if "velocity" not in self.state:
            self.state["velocity"] = torch.zeros_like(self.param)
            self.state["velocity_scale"] = 0.0
        return _as_real(self.state["velocity"])

    def row(self, n: int) -> Tensor:
        """The gradient of piece ``n`` of the open bundle."""
        return _as_real(self.state["gradients"][n])

    def join(self, position: int) -> None:
        """Take part in the open bundle from here on; its pieces so far did not depend on this parameter."""
        self.state["active"] = 1
        self.state["centre"].copy_(self.param)
        self.state["gradients"][:position].zero_()

    def gradient(self) -> Tensor:
        """The gradient; zero where a parameter of the open bundle has none this time."""
        grad, weights = self.param.grad, self.weights
        if grad is not None:
            grad = _as_real(grad if grad.layout is torch.strided else grad.to_dense())
            if grad.stride() == self.layout and grad.dtype == weights.dtype:
                return grad
        laid_out = torch.empty_strided(weights.shape, self.layout, dtype=weights.dtype, device=weights.device)
        return laid_out.zero_() if grad is None else laid_out.copy_(grad)

    def products(self, gradient: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """``<g, g>``, and ``<g, g_k>`` for the first ``n`` pieces, in float32 or better."""
        size = gradient.numel()
        g = _at_least_float32(gradient.as_strided((size,), (1,)))
        if n == 0:
            return torch.dot(g, g), g[:0]
        rows = _as_real(self.state["gradients"]).as_strided((n, size), (size, 1))
        return torch.dot(g, g), torch.mv(_at_least_float32(rows), g)


@dataclass
class Part:
    """Slots that one kernel call can take: same parameter group, device, dtype and unit of the velocity."""

    group: int
    slots: list[Slot] = field(default_factory=list)

    @property
    def fused(self) -> bool:
        """Whether the fused kernels, which see only runs of memory, may be used."""
        return self.slots[0].param.device.type in FUSED_DEVICES and all(
            slot.weights.stride() == slot.layout for slot in self.slots
        )

    def weights(self) -> list[Tensor]:
        return [slot.weights for slot in self.slots]

    def centre(self) -> list[Tensor]:
        return [slot.centre for slot in self.slots]

    def row(self, n: int) -> list[Tensor]:
        return [slot.row(n) for slot in self.slots]

    def gradients(self) -> list[Tensor]:
        return [slot.gradient() for slot in self.slots]

    def products(self, gradients: list[Tensor], n: int) -> Tensor:
        """``<g, g_k>`` for the first ``n`` pieces and then ``<g, g>``, summed over the slots in float64."""
        own, cross = zip(*(s.products(g, n) for s, g in zip(self.slots, gradients, strict=True)), strict=True)
        total = torch.stack(own).sum(0, keepdim=True, dtype=torch.float64)
        return torch.cat((torch.stack(cross).sum(0, dtype=torch.float64), total)) if n else total

    def to_centre(self) -> None:
        combine(self.weights(), self.centre(), [])

    def to_trial(self, steps: Sequence[float], gradients: list[Tensor] | None = None) -> None:
        """Put the weights at ``centre - sum of step * gradient``.

        A new gradient is that of the last piece, and is kept in its row on the way; the first one is measured at the
        centre, so that the weights are there already.
        """
        last = len(steps) - 1
        if gradients is None or last > 0:
            combine(self.weights(), self.centre(), [(-steps[k], self.row(k)) for k in range(last) if steps[k]])
        if gradients is None:
            descend(self.weights(), self.row(last), steps[last], self.fused)
        else:
            descend(self.weights(), gradients, steps[last], self.fused, keep=self.row(last))

    def move_centre(self, steps: Sequence[float], gradients: list[Tensor] | None, momentum: float) -> None:
        """``u = -sum of step * gradient; v = momentum * v + u; weights = centre + u + momentum * v``.

        The gradients of the last piece may be given instead of being in its row.
        """
        last = len(steps) - 1
        terms = [(steps[k], self.row(k)) for k in range(last) if steps[k]]
        if steps[last] or not terms:
            terms.append((steps[last], self.row(last) if gradients is None else gradients))
        weights = self.weights()
        centre = self._leave_bundle() if "centre" in self.slots[0].state else weights
        if momentum == 0.0:
            combine(weights, centre, [(-step, x) for step, x in terms])
            return
        step, direction = weighted_sum(terms)
        combine(weights, centre, [])
        velocity = [slot.velocity for slot in self.slots]
        scale = descend_with_momentum(
            weights,
            direction,
            velocity,
            step=step,
            momentum=momentum,
            scale=self.slots[0].state["velocity_scale"],
            fused=self.fused,
        )
        for slot in self.slots:
            slot.state["velocity_scale"] = scale

    def _leave_bundle(self) -> list[Tensor]:
        for slot in self.slots:
            slot.state["active"] = 0
        return self.centre()


def partition(slots: Iterable[tuple[int, Slot]]) -> list[Part]:
    """Group slots, given with the index of their parameter group, into parts."""
    parts: dict[Any, Part] = {}
    for group, slot in slots:
        key = (group, slot.param.device, slot.param.dtype, slot.state.get("velocity_scale"))
        if key not in parts:
            parts[key] = Part(group)
        parts[key].slots.append(slot)
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
