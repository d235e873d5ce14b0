"""Parameters, their gradients and what is kept of them, as the kernels see them: lists of dense, real tensors.

Three steps lead there. A :class:`Slot` is one parameter with the tensors that are kept for it in the optimizer's state.
A :class:`Part` is a list of slots that one kernel call can take. Both are made once and used until the state is
replaced, which a :class:`Roster` of slots finds out. A :class:`View` is a part at the time of one call: where its
weights and gradients are now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from borat import sharding
from borat.kernels import Sizes, Vector
from borat.vectors import Backend, backend_for

_ORDINARY = (Tensor, torch.nn.Parameter)
_dtype = attrgetter("dtype")
_place = attrgetter("device", "dtype")


class Kept(NamedTuple):
    """A tensor that is kept for each parameter, in its shape and layout.

    Attributes:
        key: its name in the optimizer's state.
        rows: so many of them, stacked.
        precise: in float32 where the parameter has less.
        beside: a number that goes with it in the state, and its first value.
    """

    key: str
    rows: int | None = None
    precise: bool = False
    beside: tuple[str, float] | None = None

    def dtype(self, param: Tensor) -> torch.dtype:
        return torch.promote_types(param.dtype, torch.float32) if self.precise else param.dtype

    def shape(self, param: Tensor) -> tuple[int, ...]:
        return tuple(param.shape) if self.rows is None else (self.rows, *param.shape)


class Slot:
    """One parameter and what is kept of it, as the real tensors that this process holds, in one dense layout."""

    __slots__ = (
        "_made_for",
        "dtype",
        "group",
        "kept",
        "key",
        "layout",
        "param",
        "size",
        "state",
        "tensors",
        "wrapped",
    )

    def __init__(self, param: Tensor, group: int, state: dict[str, Any], kept: Sequence[Kept]) -> None:
        self.param = param
        self.group = group
        self.state = state
        self.wrapped = sharding.is_sharded(param) or param.is_complex()
        self.key = (group, param.device, param.dtype, sharding.mesh_of(param))
        weights = self.weights
        self.layout = _dense_strides(weights)
        self.size = weights.numel()
        self.dtype = weights.dtype
        for each in kept:
            if each.key not in state:
                state[each.key] = _zeros(param, each)
            if each.beside is not None:
                state.setdefault(*each.beside)
            self._fit(each)
        self.tensors = {each.key: _plain(state[each.key]) for each in kept}
        self.kept = {each.key: state[each.key] for each in kept}
        self._made_for = (_place(param), group, kept)

    def is_current(self, state: dict[str, Any], group: int, kept: Sequence[Kept]) -> bool:
        """Whether parameter and state are still those that the slot was made for; both can be replaced at any time."""
        if state is not self.state or (_place(self.param), group, kept) != self._made_for:
            return False
        return all(map(is_, map(state.get, self.kept), self.kept.values()))

    def keep(self, key: str, tensor: Tensor) -> None:
        """Keep a copy of a tensor like the parameter's for a while; a slot made after this has it among its own."""
        copy = torch.zeros_like(self.param)
        _plain(copy).copy_(tensor)
        self.state[key] = copy

    def replace(self, key: str, plain: Tensor) -> None:
        """Keep this tensor of real numbers from now on."""
        self.tensors[key] = plain
        self.state[key] = self.kept[key] = torch.view_as_complex(plain) if self.param.is_complex() else plain

    @property
    def weights(self) -> Tensor:
        return _plain(self.param) if self.wrapped else self.param

    def gradient(self) -> Tensor:
        """The gradient; zero where the parameter has none this time."""
        grad = self.param.grad
        if not self.wrapped and _are_runs([grad], [self.layout], [self.size], self.dtype):
            assert grad is not None
            return grad
        weights = self.weights
        result = torch.empty_strided(weights.shape, self.layout, dtype=weights.dtype, device=weights.device)
        if grad is None:
            return result.zero_()
        grad = sharding.like(grad if grad.layout is torch.strided else grad.to_dense(), self.param)
        return result.copy_(_plain(grad.resolve_conj()))

    def _fit(self, kept: Kept) -> None:
        """Give a tensor of the state layout, dtype and device of the parameter; a loaded one may have others."""
        tensor, dtype = self.state[kept.key], kept.dtype(self.param)
        plain = _plain(tensor)
        strides = self.layout if kept.rows is None else (self.size, *self.layout)
        fits = plain.stride()[plain.dim() - len(self.layout) :] == self.layout or plain.numel() <= 1
        if fits and tensor.dtype == dtype and tensor.device == self.param.device:
            return
        real = dtype.to_real() if dtype.is_complex else dtype
        fitted = torch.empty_strided(plain.shape, strides, dtype=real, device=self.param.device).copy_(plain)
        if dtype.is_complex:
            fitted = torch.view_as_complex(fitted)
        self.state[kept.key] = sharding.wrap_like(fitted, tensor)


Extent = tuple[int, Sequence[Kept]]
"""Of a parameter group: how many parameters it has, and what is kept of each at least."""


class Roster:
    """The slots of a batch. The next batch nearly always has the same ones, and they are current: that is asked of all
    at once, as it would take a tenth of a step to ask one after the other."""

    def __init__(self, slots: list[Slot], groups: list[Extent]) -> None:
        self.slots = slots
        self._groups = groups
        self._params = [slot.param for slot in slots]
        self._places = list(map(_place, self._params))
        self._states = [slot.state for slot in slots]
        self._lengths = list(map(len, self._states))
        self._kept = [tensor for slot in slots for tensor in slot.kept.values()]
        self._keys = [key for slot in slots for key in slot.kept]
        self._holders = [slot.state for slot in slots for _ in slot.kept]

    def is_for(self, params: list[Tensor], states: Mapping[Tensor, dict[str, Any]], groups: list[Extent]) -> bool:
        """Whether they are the slots of these parameters, and all of them current."""
        return (
            len(params) == len(self.slots)
            and all(map(is_, params, self._params))
            and groups == self._groups
            and list(map(_place, params)) == self._places
            and all(map(is_, map(states.get, params), self._states))
            and list(map(len, self._states)) == self._lengths
            and all(map(is_, map(dict.get, self._holders, self._keys), self._kept))
        )


class Part:
    """Slots that one kernel call can take: same parameter group, device, dtype and processes."""

    def __init__(self, slots: list[Slot]) -> None:
        self.slots = slots
        self.group = slots[0].group
        self.device = slots[0].param.device
        self.is_sharded = sharding.is_sharded(slots[0].param)
        self._params = [slot.param for slot in slots]
        self._is_wrapped = slots[0].wrapped
        self._layouts = [slot.layout for slot in slots]
        self._sizes = [slot.size for slot in slots]
        self._sizes_of_vectors = Sizes.of(slot.weights for slot in slots)
        self.kept = {key: [slot.tensors[key] for slot in slots] for key in slots[0].tensors}
        stacks = self.kept.pop("gradients", [])
        unbound = [stack.unbind() for stack in stacks]  # none: PyTorch 2.6's compiler finds no end in zip()
        self.rows = [list(row) for row in zip(*unbound, strict=True)] if unbound else []
        """The kept gradients, each as a list of tensors."""
        self.matrices = [stack.as_strided((len(stack), _size(stack)), (stack.stride(0), 1)) for stack in stacks]
        """The kept gradients of each slot, as the rows of a matrix."""

    def holders(self, processes: int) -> int:
        """How many of the processes hold the same numbers."""
        return sharding.holders(self.slots[0].param, processes)

    def view(self, *, with_gradients: bool) -> View:
        """Where the weights and, if they are wanted, their gradients are now."""
        first = self.slots[0]
        weights = Vector([slot.weights for slot in self.slots] if self._is_wrapped else self._params)
        gradients = Vector(self._gradients() if with_gradients else ())
        weights.sizes = gradients.sizes = self._sizes_of_vectors
        return View(
            self,
            weights,
            gradients,
            [Vector(row) for row in self.rows],
            {key: Vector(tensors) for key, tensors in self.kept.items()},
            backend_for(self.device, first.dtype, _are_runs(weights, self._layouts, self._sizes, first.dtype)),
        )

    def _gradients(self) -> list[Tensor]:
        """Asked of all at once, as they nearly always are what they should be: :meth:`Slot.gradient` for each."""
        own: list[Any] = [param.grad for param in self._params]
        if not self._is_wrapped and _are_runs(own, self._layouts, self._sizes, self.slots[0].dtype):
            return own
        return [slot.gradient() for slot in self.slots]


@dataclass
class View:
    """A part at the time of one call. It is dropped with the call, so that no gradient outlives ``zero_grad()``."""

    part: Part
    weights: Vector
    gradients: Vector
    rows: list[Vector]
    """The kept gradients."""
    kept: dict[str, Vector]
    """What else is kept."""
    backend: Backend

    def __getitem__(self, key: str) -> Vector:
        return self.kept[key]

    @property
    def group(self) -> int:
        return self.part.group


def partition(slots: Iterable[Slot], by: str) -> list[Part]:
    """Group slots into parts; slots whose state differs in the number ``by`` go to different ones."""
    groups: dict[Any, list[Slot]] = {}
    for slot in slots:
        groups.setdefault((slot.key, slot.state.get(by), len(slot.tensors)), []).append(slot)
    return [Part(group) for group in groups.values()]


def _are_runs(tensors: Sequence[Any], layouts: list[tuple[int, ...]], sizes: list[int], dtype: torch.dtype) -> bool:
    """Whether the elements of all tensors are in their memory, with these strides and as they are.

    Subclasses that take over PyTorch's operations may have none, or may still wait for it to be filled.
    """
    return (
        all(map(_has_memory, set(map(type, tensors))))
        and list(map(Tensor.stride, tensors)) == layouts
        and list(map(Tensor.numel, tensors)) == sizes
        and set(map(_dtype, tensors)) == {dtype}
        and not any(map(Tensor.is_neg, tensors))
    )


def _has_memory(kind: type) -> bool:
    return kind in _ORDINARY or getattr(kind, "__torch_dispatch__", None) is Tensor.__torch_dispatch__


def _plain(x: Tensor) -> Tensor:
    """The elements of ``x`` on this process, as real numbers, sharing its memory."""
    x = sharding.local(x)
    return torch.view_as_real(x) if x.is_complex() else x


def _dense_strides(x: Tensor) -> tuple[int, ...]:
    """The strides of a dense copy of ``x``: its own, if it is dense itself."""
    return torch.empty_like(x, device="meta").stride()


def _size(stack: Tensor) -> int:
    """The number of elements of one of the stacked tensors."""
    return stack[0].numel()


def _zeros(param: Tensor, kept: Kept) -> Tensor:
    if kept.rows is None:
        return torch.zeros_like(param, dtype=kept.dtype(param))
    own = sharding.local(param)
    size, strides = (kept.rows, *own.shape), (own.numel(), *_dense_strides(own))
    rows = torch.empty_strided(size, strides, dtype=kept.dtype(param), device=param.device).zero_()
    return sharding.stacked(rows, param)
