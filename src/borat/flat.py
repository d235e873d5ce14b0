"""Parameters as vectors, for the steps that never wait for the host.

On a GPU each operation is a launch, which costs more than a small tensor does. So what is kept of the parameters of one
group, device and dtype lies one after the other in a few long tensors, and a step is some operations on them, however
many parameters there are. The optimizer's state has views of them: to everybody else it looks as it does on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from borat import kernels_on_device
from borat.parameters import Slot
from borat.vectors import at_least


@dataclass(frozen=True)
class _Place:
    """How a parameter lies in a vector: in the order of its memory, from the largest stride to the smallest."""

    slot: Slot
    size: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    inverse: tuple[int, ...]

    @classmethod
    def of(cls, slot: Slot) -> _Place:
        shape, strides = tuple(slot.weights.shape), slot.layout
        order = tuple(sorted(range(len(shape)), key=lambda i: -strides[i]))
        inverse = tuple(sorted(range(len(shape)), key=lambda i: order[i]))
        return cls(slot, slot.weights.numel(), tuple(shape[i] for i in order), order, inverse)

    def flatten(self, x: Tensor) -> Tensor:
        return x.permute(self.order).reshape(-1)

    def unflatten(self, x: Tensor) -> Tensor:
        return x.view(self.shape).permute(self.inverse)

    def gradient(self) -> Tensor | None:
        grad = self.slot.param.grad
        if grad is not None and grad.layout is not torch.strided:
            grad = grad.to_dense()
        return torch.view_as_real(grad.resolve_conj()) if grad is not None and grad.is_complex() else grad


class Flat:
    """Slots of the same parameter group, device and dtype as vectors.

    Args:
        slots: the parameters. What is kept of them moves here.
        pieces: the number of rows for gradients, that of the batch at hand included.
    """

    def __init__(self, slots: list[Slot], pieces: int) -> None:
        self.group, self.dtype, self.device = slots[0].group, slots[0].dtype, slots[0].weights.device
        self.precise = torch.promote_types(self.dtype, torch.float32)
        """In which sums are taken."""
        self._places = [_Place.of(slot) for slot in slots]
        self._sizes = [place.size for place in self._places]
        self.rows = torch.zeros(pieces, sum(self._sizes), dtype=self.dtype, device=self.device)
        """The gradients that are kept, and in the last row the newest."""
        self.zero = self.rows.new_zeros(())
        self.has_kernels = kernels_on_device.are_used(self.device)
        self.kept: dict[str, Tensor] = {}
        for key in slots[0].tensors:
            if key == "gradients":
                self._take_over(key, self.rows[:-1])
            else:
                empty = self.rows.new_empty(sum(self._sizes), dtype=slots[0].tensors[key].dtype)
                self.kept[key] = self._take_over(key, empty)

    def _take_over(self, key: str, target: Tensor) -> Tensor:
        """Bring what the slots keep into rows of one tensor, and leave them views of it."""
        for place, chunk in zip(self._places, target.split_with_sizes(self._sizes, dim=-1), strict=True):
            if not place.size:  # it may have strides with which nothing can be viewed as complex
                continue
            strides = (*chunk.stride()[:-1], *place.slot.layout)
            own = place.slot.tensors[key]
            view = chunk.as_strided(own.shape, strides)
            place.slot.replace(key, view.copy_(own))
        return target

    @property
    def slots(self) -> list[Slot]:
        return [place.slot for place in self._places]

    def load(self) -> Tensor:
        """Bring the parameters' own gradients to the last row; the weights, as a vector."""
        weights = self.rows.new_empty(sum(self._sizes))
        own = [place.slot.weights for place in self._places]
        torch._foreach_copy_([*self.shaped(self.rows[-1]), *self.shaped(weights)], [*self._gradients(), *own])
        return weights

    def _gradients(self) -> list[Tensor]:
        found = [place.gradient() for place in self._places]
        places = zip(self._places, found, strict=True)
        return [self.zero.expand(place.slot.weights.shape) if g is None else g for place, g in places]

    def keep(self, row: Tensor, ok: Tensor) -> None:
        """Copy the newest gradient to a row; in the last one it is forgotten with the next batch.

        A gradient of a batch that was dropped leaves zeros, as its own numbers may not be finite.
        """
        if len(self.rows) == 1:
            torch.where(ok, self.rows, self.zero, out=self.rows)
        else:
            self.rows.index_copy_(0, row, torch.where(ok, self.rows[-1:], self.zero))

    def combined(self, steps: Tensor) -> Tensor:
        """The sum of step * gradient."""
        return torch.mv(self.precise_rows().mT, steps.to(self.device, self.precise))

    def precise_rows(self) -> Tensor:
        return at_least(self.rows, torch.float32)

    def weights(self) -> Tensor:
        return torch.cat([place.flatten(place.slot.weights) for place in self._places])

    def put(self, vector: Tensor) -> None:
        """Write the weights."""
        torch._foreach_copy_([place.slot.weights for place in self._places], self.shaped(vector))

    def add(self, vector: Tensor) -> None:
        """Move the weights."""
        torch._foreach_add_([place.slot.weights for place in self._places], self.shaped(vector.to(self.dtype)))

    def shaped(self, vector: Tensor) -> list[Tensor]:
        """Views of a vector, in the shapes of the parameters."""
        return [place.unflatten(x) for place, x in zip(self._places, vector.split_with_sizes(self._sizes), strict=True)]
