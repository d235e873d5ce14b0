"""What the optimizer keeps of each parameter, and how a bundle moves it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from borat import kernels, sharding
from borat.vectors import Backend, backend_for, combine, move, move_with_momentum

_ORDINARY = (Tensor, torch.nn.Parameter)

_SMALL = 2**14
"""Tensors of at most this many elements are multiplied together: calling the kernels costs more than copying."""


class Slot:
    """One parameter and its state: the centre, the gradients of the open bundle, the velocity.

    All are seen as the real tensors that this process holds, in the dense layout of the parameter. The gradient of the
    last piece is still in ``param.grad`` when a bundle is finished, so that ``N - 2`` rows are enough for ``N - 1``
    pieces.
    """

    __slots__ = ("_kept", "centre", "dtype", "key", "layout", "matrix", "param", "rows", "state", "wrapped")

    def __init__(self, param: Tensor, group: int, state: dict[str, Any], bundle_size: int) -> None:
        self.param = param
        self.state = state
        self.wrapped = sharding.is_sharded(param) or param.is_complex()
        self.key = (group, param.device, param.dtype, sharding.mesh_of(param))
        self.layout = _dense_strides(self.weights)
        self.dtype = self.weights.dtype
        if bundle_size > 2:
            if "centre" not in state:
                state["centre"] = torch.zeros_like(param)
                state["gradients"] = sharding.stacked(_rows_like(sharding.local(param), bundle_size - 2), param)
                state["active"] = 0
            self._fit("centre", self.layout)
            size = self.weights.numel()
            self._fit("gradients", (size, *self.layout))
            self.centre = _plain(state["centre"])
            stack = _plain(state["gradients"])
            self.rows = stack.unbind()
            self.matrix = stack.as_strided((bundle_size - 2, size), (max(size, 1), 1))
        if "velocity" in state:
            self._fit("velocity", self.layout)
        self._kept = (state.get("centre"), state.get("gradients"), param.dtype, param.device)

    def is_current(self, state: dict[str, Any]) -> bool:
        """Whether parameter and state are still those that the slot was made for; both can be replaced at any time."""
        centre, gradients, dtype, device = self._kept
        return (
            state is self.state
            and state.get("centre") is centre
            and state.get("gradients") is gradients
            and self.param.dtype == dtype
            and self.param.device == device
        )

    def _fit(self, key: str, strides: tuple[int, ...]) -> None:
        """Give a tensor of the state the layout and the dtype of the parameter; a loaded one may have others."""
        tensor = self.state[key]
        plain = _plain(tensor)
        if (plain.stride() == strides or plain.numel() <= 1) and tensor.dtype == self.param.dtype:
            return
        fitted = torch.empty_strided(plain.shape, strides, dtype=self.dtype, device=self.param.device).copy_(plain)
        if self.param.is_complex():
            fitted = torch.view_as_complex(fitted)
        self.state[key] = sharding.wrap_like(fitted, tensor)

    @property
    def weights(self) -> Tensor:
        return _plain(self.param) if self.wrapped else self.param

    @property
    def velocity(self) -> Tensor:
        if "velocity" not in self.state:
            self.state["velocity"] = torch.zeros_like(self.param)
            self.state["velocity_scale"] = 0.0
        return _plain(self.state["velocity"]) if self.wrapped else self.state["velocity"]

    def gradient(self) -> Tensor:
        """The gradient; zero where a parameter of the open bundle has none this time."""
        grad = self.param.grad
        if grad is not None and not self.wrapped and grad.dtype == self.dtype and _is_run(grad, self.layout):
            return grad
        return self._laid_out(grad)

    def _laid_out(self, grad: Tensor | None) -> Tensor:
        weights = self.weights
        result = torch.empty_strided(weights.shape, self.layout, dtype=weights.dtype, device=weights.device)
        if grad is None:
            return result.zero_()
        grad = sharding.like(grad if grad.layout is torch.strided else grad.to_dense(), self.param)
        return result.copy_(_plain(grad.resolve_conj()))


class Part:
    """Slots that one kernel call can take: same parameter group, device, dtype, processes and unit of the velocity.

    It is built once and used for as long as the same parameters have gradients, so that a call of the optimizer does
    little more than call the kernels.
    """

    def __init__(self, slots: list[Slot]) -> None:
        self.slots = slots
        self.group = slots[0].key[0]
        self.gradients: list[Tensor] = []
        self._bundled = "centre" in slots[0].state
        self.rows: list[list[Tensor]] = []
        if self._bundled:
            self.centre = [slot.centre for slot in slots]
            self.rows = [list(row) for row in zip(*(slot.rows for slot in slots), strict=True)]
        sizes = [slot.weights.numel() for slot in slots]
        self._large = [i for i, size in enumerate(sizes) if size > _SMALL]
        self._small = [i for i, size in enumerate(sizes) if size <= _SMALL]

    @property
    def device(self) -> torch.device:
        return self.slots[0].param.device

    @property
    def is_sharded(self) -> bool:
        return sharding.is_sharded(self.slots[0].param)

    def holders(self, processes: int) -> int:
        """How many of the processes hold the same numbers."""
        return sharding.holders(self.slots[0].param, processes)

    def look(self, *, at_gradients: bool) -> None:
        """Take note of where the weights and their gradients are now."""
        self.weights = [slot.weights for slot in self.slots]
        self.gradients = [slot.gradient() for slot in self.slots] if at_gradients else []
        are_runs = all(_is_run(w, slot.layout) for w, slot in zip(self.weights, self.slots, strict=True))
        self.backend = backend_for(self.device, self.slots[0].dtype, are_runs)

    def products(self, n: int, *, precise: bool = False) -> Tensor:
        """``<g, g_k>`` for the first ``n`` pieces and then ``<g, g>``, summed over the slots in float64.

        The products themselves are taken in the parameters' precision, or float32 if that is lower; ``precise`` ones,
        and those of our own kernels, in float64.
        """
        slots, gradients = self.slots, self.gradients
        if self.backend is Backend.OWN:
            return torch.tensor(kernels.products(gradients, [*self.rows[:n], gradients]), dtype=torch.float64)
        least = torch.float64 if precise else torch.float32
        vectors = [_flat(gradients[i]) for i in self._large]
        matrices = [slots[i].matrix for i in self._large] if n else []
        if self._small:
            vectors.append(torch.cat([_flat(gradients[i]) for i in self._small]))
            if n:
                matrices.append(torch.cat([slots[i].matrix for i in self._small], dim=1))
        vectors = [_at_least(g, least) for g in vectors]
        own = torch.stack([torch.dot(g, g) for g in vectors]).sum(0, keepdim=True, dtype=torch.float64)
        if n == 0:
            return own
        cross = [torch.mv(_at_least(m[:n], least), g) for m, g in zip(matrices, vectors, strict=True)]
        return torch.cat((torch.stack(cross).sum(0, dtype=torch.float64), own))

    def clear_rows(self, position: int) -> None:
        """The pieces so far did not depend on the parameters that join with this batch."""
        for slot in self.slots if self._bundled and position else ():
            if not slot.state["active"]:
                slot.matrix[:position].zero_()

    def join(self, position: int) -> None:
        """Let all slots take part in the open bundle. Where it has a single linear piece, nothing is kept."""
        for slot in self.slots if self._bundled else ():
            if position and not slot.state["active"]:
                slot.centre.copy_(slot.weights)
            slot.state["active"] = 1

    def leave(self) -> None:
        for slot in self.slots if self._bundled else ():
            slot.state["active"] = 0

    def to_centre(self) -> None:
        combine(self.centre, out=self.weights)

    def to_trial(self, steps: Sequence[float], *, replay: bool = False) -> None:
        """Put the weights at ``centre - sum of step * gradient`` and keep the gradient of the last piece in its row.

        The first gradient is measured at the centre, so that the weights are there, and are kept as the centre. To
        ``replay`` is to come back to this trial point later, when the gradient is in its row and the weights are
        anywhere.
        """
        last = len(steps) - 1
        vectors = [*self.rows[:last], self.rows[last] if replay else self.gradients]
        terms = [(steps[k], x) for k, x in enumerate(vectors) if steps[k] or k == last]
        is_first = last == 0 and not replay
        move(
            self.weights,
            self.weights if is_first else self.centre,
            terms,
            self.backend,
            old_base=self.centre if is_first else None,
            last_term=None if replay else self.rows[last],
        )

    def move_centre(self, steps: Sequence[float], momentum: float, *, flush: bool = False) -> None:
        """``u = -sum of step * gradient; v = momentum * v + u; weights = centre + u + momentum * v``.

        The gradient of the last piece is the parameters' own; to ``flush`` is to end early, when it is in its row.
        """
        last = len(steps) - 1
        terms = [(steps[k], self.rows[k]) for k in range(last) if steps[k]]
        if steps[last] or not terms:
            terms.append((steps[last], self.rows[last] if flush else self.gradients))
        centre = self.centre if self._bundled else self.weights
        if momentum == 0.0 and "velocity" not in self.slots[0].state:
            move(self.weights, centre, terms, self.backend)
            return
        velocity = [slot.velocity for slot in self.slots]
        scale = self.slots[0].state["velocity_scale"]
        scale = move_with_momentum(self.weights, centre, terms, velocity, self.backend, momentum=momentum, scale=scale)
        for slot in self.slots:
            slot.state["velocity_scale"] = scale


def partition(slots: Iterable[Slot]) -> list[Part]:
    """Group slots into parts."""
    groups: dict[Any, list[Slot]] = {}
    for slot in slots:
        groups.setdefault((slot.key, slot.state.get("velocity_scale")), []).append(slot)
    return [Part(group) for group in groups.values()]


def _plain(x: Tensor) -> Tensor:
    """The elements of ``x`` on this process, as real numbers, sharing its memory."""
    x = sharding.local(x)
    return torch.view_as_real(x) if x.is_complex() else x


def _is_run(x: Tensor, strides: tuple[int, ...]) -> bool:
    """Whether the elements of ``x`` are in its memory, with these strides and as they are.

    Subclasses that take over PyTorch's operations may have none, or may still wait for it to be filled.
    """
    is_ordinary = type(x) in _ORDINARY or type(x).__torch_dispatch__ is Tensor.__torch_dispatch__
    return is_ordinary and x.stride() == strides and not x.is_neg()


def _dense_strides(x: Tensor) -> tuple[int, ...]:
    """The strides of a dense copy of ``x``: its own, if it is dense itself."""
    return torch.empty_like(x, device="meta").stride()


def _rows_like(param: Tensor, rows: int) -> Tensor:
    """Zeros for ``rows`` gradients, each in the layout of the parameter."""
    size, strides = (rows, *param.shape), (param.numel(), *_dense_strides(param))
    return torch.empty_strided(size, strides, dtype=param.dtype, device=param.device).zero_()


def _flat(x: Tensor) -> Tensor:
    """The elements of a dense tensor as a vector, in the order of memory."""
    return x.as_strided((x.numel(),), (1,))


def _at_least(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.element_size() < dtype.itemsize else x
