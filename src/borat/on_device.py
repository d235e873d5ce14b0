"""Bundles that stay where the parameters are: what they have in common.

Their numbers are float64 tensors of fixed shapes, and what the host decides by a branch is a mask here. So no operation
waits for the value of another one, and all batches are the same sequence of operations. The host reads the numbers when
somebody looks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from borat import sharding
from borat.bundle import StepInfo
from borat.dual import Array
from borat.dual_on_device import LIMIT
from borat.flat import Flat
from borat.keeping import Constraint
from borat.measure import Loss, Measure
from borat.parameters import Slot, partition

_WITHOUT_WAITS = ("cpu", "meta")
_WITHOUT_FLOAT64 = ("mps",)

Shapes = Mapping[str, tuple[int, ...]]
Groups = Sequence[Mapping[str, Any]]


def are_capturable(params: Sequence[Tensor], bundle_size: int, wanted: bool | None) -> bool:
    """Whether a step on these parameters can leave all numbers where they are, and is to.

    Larger bundles have too many supports to try them all at once, and the products of sharded parameters are sums over
    several groups of processes.
    """
    excluded = _WITHOUT_FLOAT64 if wanted else (*_WITHOUT_FLOAT64, *_WITHOUT_WAITS)
    return (
        wanted is not False
        and bundle_size <= LIMIT
        and all(p.device.type not in excluded for p in params)
        and not any(sharding.is_sharded(p) for p in params)
    )


def number(x: Loss, device: torch.device) -> Tensor:
    """A number where the others are, without a transfer that waits: the host's are arguments of an operation."""
    if not isinstance(x, Tensor):
        return torch.full((), float(x), dtype=torch.float64, device=device)
    if x.device.type == "cpu":
        return torch.zeros((), dtype=torch.float64, device=device) + x.detach().reshape(())
    return x.detach().reshape(()).to(device, torch.float64)


class Packed:
    """Numbers by name, one after the other in one vector: so that one operation writes and one transfer reads them."""

    def __init__(self, shapes: Shapes, device: torch.device) -> None:
        self.shapes = dict(shapes)
        self._sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.vector = torch.zeros(sum(self._sizes), dtype=torch.float64, device=device)

    def tensors(self) -> dict[str, Tensor]:
        chunks = self.vector.split_with_sizes(self._sizes)
        return {name: chunk.view(shape) for (name, shape), chunk in zip(self.shapes.items(), chunks, strict=True)}

    def put(self, tensors: Mapping[str, Tensor], where: Tensor | None = None) -> None:
        """Write all numbers, or leave them as they are ``where`` it is not true."""
        new = torch.cat([tensors[name].reshape(-1) for name in self.shapes])
        if where is None:
            self.vector.copy_(new)
        else:
            torch.where(where, new, self.vector, out=self.vector)

    def send(self, values: Mapping[str, Any]) -> None:
        """Write numbers of the host; those before the first batch are zeros, and are there already."""
        new = np.concatenate([np.asarray(values[name], dtype=np.float64).reshape(-1) for name in self.shapes])
        if new.any():
            self.vector.copy_(torch.from_numpy(new), non_blocking=True)
        else:
            self.vector.zero_()

    def read(self) -> dict[str, Array]:
        values = np.split(np.array(self.vector.tolist()), np.cumsum(self._sizes)[:-1])
        return {name: value.reshape(shape) for (name, shape), value in zip(self.shapes.items(), values, strict=True)}


def folded(alpha: Tensor, is_there: Tensor) -> Tensor:
    """The weights, where those of pieces that are not there are the constant piece's, the last one."""
    own = torch.where(is_there, alpha[:-1], 0.0)
    return torch.cat((own, alpha[-1:] + torch.where(is_there, 0.0, alpha[:-1]).sum(0, keepdim=True)))


def polyak_step(gap: Tensor, squared_norm: Tensor) -> Tensor:
    """None where there is no gradient, or one so short that the step has no end."""
    step = gap / squared_norm
    return torch.where((squared_norm > 0.0) & step.isfinite(), step, 0.0)


class OnDevice(ABC):
    """The bundle of these slots, with what is kept of them as vectors.

    Args:
        slots: the parameters that take part.
        params: all parameters of the optimizer.
        pieces: the number of linear pieces.
        numbers: the shapes of the numbers from one batch to the next, besides those that all bundles have.
        told: those of the numbers that tell what the last completed update did.
    """

    def __init__(self, slots: list[Slot], params: list[Tensor], pieces: int, numbers: Shapes, told: Shapes) -> None:
        self.slots = slots
        self.pieces = pieces
        self.flats = [Flat(part.slots, pieces) for part in partition(slots, by="velocity_scale")]
        self.device = params[0].device
        self.numbers = Packed(numbers, self.device)
        self.counts = Packed(dict.fromkeys(("updates", "dropped", "dropped_loss", "below"), ()), self.device)
        """Updates, batches that were dropped and the loss of the last of them, and the lowest loss below the bound."""
        self.told = Packed(told, self.device)
        self.is_ahead = False
        """Whether a batch was taken since the host has read the numbers."""
        self._seen = 0
        own = [slot.param for flat in self.flats for slot in flat.slots]
        index = {id(p): i for i, p in enumerate(own)}
        self._others = [p for p in params if id(p) not in index]
        index |= {id(p): i for i, p in enumerate(self._others, start=len(own))}
        self._order = [index[id(p)] for p in params]

    # What each bundle says of itself

    @abstractmethod
    def take(self, loss: Loss, groups: Groups, measure: Measure, constraint: Constraint | None) -> None:
        """Add the batch to the bundle and move, without waiting for anything."""

    @abstractmethod
    def send(self, bundle: Any) -> None:
        """Take over the numbers of the host's bundle."""

    @abstractmethod
    def _plain(self, numbers: dict[str, Array]) -> dict[str, Any]:
        """As the host's bundle has them."""

    @abstractmethod
    def _describe(self, told: dict[str, Array]) -> StepInfo: ...

    # What they share

    def read(self) -> tuple[dict[str, Any], StepInfo | None]:
        """Wait for the numbers: as the host's bundle has them, and what the last update did if it is a new one."""
        counts = self.counts.read()
        info = self._describe(self.told.read()) if counts["updates"] > self._seen else None
        self._seen = int(counts["updates"])
        self.is_ahead = False
        shared = {"dropped": int(counts["dropped"]), "dropped_loss": float(counts["dropped_loss"])}
        return {**self._plain(self.numbers.read()), **shared, "below": float(counts["below"])}, info

    def _send(self, numbers: Mapping[str, Any]) -> None:
        self.numbers.send(numbers)
        self.counts.send({"updates": self._seen, "dropped": numbers["dropped"], "dropped_loss": 0.0, "below": 0.0})

    def _count(self, ok: Tensor, updated: Tensor, loss: Tensor, bound: float | Tensor) -> None:
        """What the host is to tell of, when it looks."""
        old = self.counts.tensors()
        self.counts.put(
            {
                "updates": old["updates"] + updated,
                "dropped": old["dropped"] + ok.logical_not(),
                "dropped_loss": torch.where(ok, old["dropped_loss"], loss),
                "below": torch.where(ok, torch.minimum(old["below"], loss - bound), old["below"]),
            }
        )

    def _project(self, constraint: Constraint, tensors: list[Tensor], where: Tensor) -> None:
        """Project these tensors and the parameters that take no part, the latter only ``where`` it is true."""
        before = [p.clone() for p in self._others]
        constraint(self._arranged(tensors))
        for p, old in zip(self._others, before, strict=True):
            p.copy_(torch.where(where.to(p.device), p, old))

    def _arranged(self, tensors: list[Tensor]) -> list[Tensor]:
        """Tensors of the flats, and the parameters that take no part, in the order of the optimizer's parameters."""
        both = [*tensors, *self._others]
        return [both[i] for i in self._order]
