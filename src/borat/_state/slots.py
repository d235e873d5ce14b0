"""Parameters, their gradients and their optimizer state, arranged for the vector operations.

A :class:`Slot` is one parameter with the tensors kept for it in the optimizer's state. A :class:`Part` is a list of
slots that one call of a vector operation can take. Both are made once and used until a parameter or its state is
replaced, which :class:`Members` detects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter, is_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from borat._state import sharding
from borat._vectors.cpu import CpuVectors, has_kernels_for
from borat._vectors.torch import Flat, TorchVectors

Vectors = CpuVectors | TorchVectors

_ORDINARY = (Tensor, torch.nn.Parameter)
_dtype = attrgetter("dtype")
_place = attrgetter("device", "dtype")


class TensorSpec(NamedTuple):
    """Specification of a tensor kept for each parameter, in its shape and layout."""

    key: str  # its name in the optimizer's state
    rows: int | None = None  # the number of stacked tensors, or None for a single one
    at_least_float32: bool = False  # True to store it in float32 if the parameter has lower precision

    def dtype(self, param: Tensor) -> torch.dtype:
        return torch.promote_types(param.dtype, torch.float32) if self.at_least_float32 else param.dtype

    def shape(self, param: Tensor) -> tuple[int, ...]:
        return tuple(param.shape) if self.rows is None else (self.rows, *param.shape)


class Slot:
    """One parameter and its state: the shards of this process as real tensors in one dense layout."""

    __slots__ = (
        "_made_for",
        "dtype",
        "group",
        "is_sharded",
        "is_wrapped",
        "key",
        "layout",
        "originals",
        "param",
        "size",
        "state",
        "tensors",
    )

    def __init__(self, param: Tensor, group: int, state: dict[str, Any], specs: Sequence[TensorSpec]) -> None:
        self.param = param
        self.group = group
        self.state = state
        self.is_sharded = sharding.is_sharded(param)
        self.is_wrapped = self.is_sharded or param.is_complex()
        self.key = (group, param.device, param.dtype, sharding.mesh_of(param))
        weights = self.weights
        self.layout = _dense_strides(weights)
        self.size = weights.numel()
        self.dtype = weights.dtype
        for spec in specs:
            if spec.key not in state:
                state[spec.key] = _zeros(param, spec)
            self._fit(spec)
        self.originals = {spec.key: state[spec.key] for spec in specs}
        self.tensors = {key: _plain(tensor) for key, tensor in self.originals.items()}
        self._made_for = (_place(param), group, specs)

    def is_current(self, state: dict[str, Any], group: int, specs: Sequence[TensorSpec]) -> bool:
        """Return True if neither the parameter nor its state was replaced since the slot was made."""
        if state is not self.state or (_place(self.param), group, specs) != self._made_for:
            return False
        return all(map(is_, map(state.get, self.originals), self.originals.values()))

    def store_copy(self, key: str, tensor: Tensor) -> None:
        """Store a copy of a tensor in the state; slots created from now on include it."""
        copy = torch.zeros_like(self.param)
        _plain(copy).copy_(tensor)
        self.state[key] = copy

    def replace(self, key: str, plain: Tensor) -> None:
        """Replace a tensor of the state by a tensor of real numbers."""
        self.tensors[key] = plain
        tensor = torch.view_as_complex(plain) if self.param.is_complex() else plain
        self.state[key] = self.originals[key] = sharding.wrap_like(tensor, self.state[key])

    @property
    def weights(self) -> Tensor:
        return _plain(self.param) if self.is_wrapped else self.param

    def gradient(self) -> Tensor:
        """Return the gradient as a tensor of real numbers of any layout; zeros if the parameter has none."""
        grad = self.param.grad
        if grad is None:
            return self.weights.new_zeros(()).expand(self.weights.shape)
        grad = grad if grad.layout is torch.strided else grad.to_dense()
        if self.is_sharded:
            grad = sharding.local(sharding.redistribute_like(grad, self.param))
        return torch.view_as_real(grad.resolve_conj()) if grad.is_complex() else grad

    def _fit(self, spec: TensorSpec) -> None:
        """Convert a tensor of the state to the required layout, dtype and device, which a loaded one may not have."""
        tensor, dtype = self.state[spec.key], spec.dtype(self.param)
        plain = _plain(tensor)
        strides = self.layout if spec.rows is None else (self.size, *self.layout)
        fits = plain.stride()[plain.dim() - len(self.layout) :] == self.layout or plain.numel() <= 1
        if fits and tensor.dtype == dtype and tensor.device == self.param.device:
            return
        real = dtype.to_real() if dtype.is_complex else dtype
        fitted = torch.empty_strided(plain.shape, strides, dtype=real, device=self.param.device).copy_(plain)
        if dtype.is_complex:
            fitted = torch.view_as_complex(fitted)
        self.state[spec.key] = sharding.wrap_like(fitted, tensor)


class Part:
    """Slots for one call of a vector operation: of the same parameter group, device, dtype and processes.

    Args:
        slots: the slots.
        pieces: number of gradients of a full bundle, the newest included.
        on_device: if True, the algorithm's numbers are tensors on the device, which the CPU kernels cannot read.
    """

    def __init__(self, slots: list[Slot], pieces: int, *, on_device: bool) -> None:
        first = slots[0]
        self.slots, self.group, self.dtype = slots, first.group, first.dtype
        self.is_sharded = first.is_sharded
        self.largest = torch.finfo(first.dtype).max
        self._params = [slot.param for slot in slots]
        self._is_wrapped = first.is_wrapped
        self._layouts, self._sizes = [slot.layout for slot in slots], [slot.size for slot in slots]
        kernels = not on_device and has_kernels_for(first.param.device, first.dtype) and self._are_dense(self.weights())
        self._flat = None if kernels else Flat(slots, pieces)
        self.kept = {key: [slot.tensors[key] for slot in slots] for key in first.tensors}
        stacks = self.kept.pop("gradients", [])
        self.rows = [list(row) for row in zip(*(stack.unbind() for stack in stacks), strict=True)] if stacks else []
        """The stored gradients, each as a list of tensors."""

    def load(self, *, with_gradients: bool = True) -> Vectors:
        """Return the vectors of a batch; moves along stored gradients need no new gradients."""
        weights = self.weights()
        if self._flat is not None:
            gradients = [slot.gradient() for slot in self.slots] if with_gradients else None
            return TorchVectors(self._flat, weights, gradients)
        return CpuVectors(weights, self._dense_gradients() if with_gradients else None, self.rows, self.kept)

    def weights(self) -> list[Tensor]:
        return [slot.weights for slot in self.slots] if self._is_wrapped else self._params

    def count_replicas(self, processes: int) -> int:
        """Return the number of processes, this one included, that hold the same shards."""
        return sharding.count_replicas(self.slots[0].param, processes)

    def _dense_gradients(self) -> list[Tensor]:
        """Return the gradients if they have the layout of the state, otherwise copies that do."""
        gradients: list[Any] = [param.grad for param in self._params]
        if not self._is_wrapped and self._are_dense(gradients):
            return gradients
        return [
            torch.empty_strided(slot.weights.shape, slot.layout, dtype=slot.dtype).copy_(slot.gradient())
            for slot in self.slots
        ]

    def _are_dense(self, tensors: Sequence[Any]) -> bool:
        """Return True if all tensors are in memory with the strides and dtype of the state.

        Tensor subclasses that override PyTorch's operations may have no memory, or memory that is not filled yet.
        """
        return (
            all(map(_has_memory, set(map(type, tensors))))
            and list(map(Tensor.stride, tensors)) == self._layouts
            and list(map(Tensor.numel, tensors)) == self._sizes
            and set(map(_dtype, tensors)) == {self.dtype}
            and not any(map(Tensor.is_neg, tensors))
        )


Batch = list[tuple[Part, Vectors]]
"""The parameters in a batch, and their vectors."""


class Members:
    """Parameters that take part in the bundle, their slots and their parts."""

    def __init__(self) -> None:
        self.joined: set[Tensor] = set()
        self.parts: list[Part] = []
        self._slots: dict[Tensor, Slot] = {}
        self._remember([], None)

    def slot(self, param: Tensor, group: int, state: dict[str, Any], specs: Sequence[TensorSpec]) -> Slot:
        """Return the slot of a parameter; a new one if the parameter or its state was replaced."""
        slot = self._slots.get(param)
        if slot is None or not slot.is_current(state, group, specs):
            slot = self._slots[param] = Slot(param, group, state, specs)
        return slot

    def arrange(self, slots: list[Slot], pieces: int, device: torch.device | None) -> list[Part]:
        """Group slots into parts; reuse those of the last batch if slots and device are the same."""
        if slots != self._arranged or self._device != device:
            groups: dict[Any, list[Slot]] = {}
            for slot in slots:
                groups.setdefault((slot.key, len(slot.tensors)), []).append(slot)
            self.parts = [Part(group, pieces, on_device=device is not None) for group in groups.values()]
        self._remember(slots, device)
        return self.parts

    def _remember(self, slots: list[Slot], device: torch.device | None) -> None:
        """Store the properties that :meth:`are_current` compares with those of the next batch."""
        self._arranged, self._device = slots, device
        self._params = [slot.param for slot in slots]
        self._places = list(map(_place, self._params))
        self._strides = list(map(Tensor.stride, self._params))
        self._states = [slot.state for slot in slots]
        self._keys = [key for slot in slots for key in slot.originals]
        self._originals = [tensor for slot in slots for tensor in slot.originals.values()]
        self._holders = [slot.state for slot in slots for _ in slot.originals]

    def are_current(self, params: Sequence[Tensor], states: Mapping[Tensor, dict[str, Any]], device: Any) -> bool:
        """Return True if the parts are those of ``params``, and neither these nor their states were replaced.

        This is nearly always the case. A loop over the slots would take a tenth of a step, so lists are compared.
        """
        return (
            self._device == device
            and len(params) == len(self._params)
            and all(map(is_, params, self._params))
            and list(map(_place, params)) == self._places
            and list(map(Tensor.stride, params)) == self._strides
            and all(map(is_, map(states.get, params), self._states))
            and all(map(is_, map(dict.get, self._holders, self._keys), self._originals))
        )


def _has_memory(kind: type) -> bool:
    return kind in _ORDINARY or getattr(kind, "__torch_dispatch__", None) is Tensor.__torch_dispatch__


def _plain(x: Tensor) -> Tensor:
    """Return this process's shard of ``x`` as a tensor of real numbers, sharing its memory."""
    x = sharding.local(x)
    return torch.view_as_real(x) if x.is_complex() else x


def _dense_strides(x: Tensor) -> tuple[int, ...]:
    """Return the strides of a dense copy of ``x``, which are those of ``x`` if it is dense."""
    return torch.empty_like(x, device="meta").stride()


def _zeros(param: Tensor, spec: TensorSpec) -> Tensor:
    if spec.rows is None:
        return torch.zeros_like(param, dtype=spec.dtype(param))
    shard = sharding.local(param)
    size, strides = (spec.rows, *shard.shape), (shard.numel(), *_dense_strides(shard))
    rows = torch.empty_strided(size, strides, dtype=spec.dtype(param), device=param.device).zero_()
    return sharding.wrap_rows_like(rows, param)
