"""Bundles that stay where the parameters are: what they have in common.

Their numbers are float64 tensors of fixed shapes, and what the host decides by a branch is a mask here. So no operation
waits for the value of another one, and all batches are the same sequence of operations. The host reads the numbers when
somebody looks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from borat import sharding
from borat.bundle import StepInfo
from borat.dual import Array
from borat.dual_on_device import LIMIT, DualOnDevice
from borat.flat import Flat
from borat.keeping import Constraint
from borat.measure import Loss, Measure
from borat.parameters import Slot, partition

_WITHOUT_WAITS = ("cpu", "meta")
_WITHOUT_FLOAT64 = ("mps",)

Shapes = Mapping[str, tuple[int, ...]]
Groups = Sequence[Mapping[str, Any]]
Sections = list[dict[str, Tensor]]


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
    """Numbers by name, one after the other in one vector: so that one operation writes and one transfer reads them.

    Args:
        sections: the shapes of the numbers. Those of a section are written together, or left as they are.
        device: where the vector is.
    """

    def __init__(self, sections: Sequence[Shapes], device: torch.device) -> None:
        self._shapes = [(i, name, shape) for i, section in enumerate(sections) for name, shape in section.items()]
        self._sizes = [math.prod(shape) for _, _, shape in self._shapes]
        self.vector = torch.zeros(sum(self._sizes), dtype=torch.float64, device=device)
        sizes = [sum(map(math.prod, section.values())) for section in sections]
        self._sections = torch.cat([torch.full((size,), i, device=device) for i, size in enumerate(sizes)])

    def tensors(self) -> Sections:
        return self._by_name(self.vector)

    def one_more(self) -> Sections:
        """All of them plus one, for those that count something."""
        return self._by_name(self.vector + 1.0)

    def _by_name(self, vector: Tensor) -> Sections:
        result: Sections = [{} for _ in range(self._shapes[-1][0] + 1)]
        for (i, name, shape), chunk in zip(self._shapes, vector.split_with_sizes(self._sizes), strict=True):
            result[i][name] = chunk.view(shape)
        return result

    def put(self, sections: Sequence[Mapping[str, Tensor]], where: Sequence[Tensor]) -> None:
        """Write the numbers of each section, or leave them as they are ``where`` its number is not true."""
        new = torch.cat([sections[i][name].reshape(-1) for i, name, _ in self._shapes])
        is_new = torch.cat(list(where)).index_select(0, self._sections)
        torch.where(is_new, new, self.vector, out=self.vector)

    def send(self, values: Mapping[str, Any]) -> None:
        """Write numbers of the host, and zeros for all others; before the first batch there is nothing else."""
        zeros = [np.zeros(shape) for _, _, shape in self._shapes]
        own = [values.get(name, zero) for (_, name, _), zero in zip(self._shapes, zeros, strict=True)]
        new = np.concatenate([np.asarray(value, dtype=np.float64).reshape(-1) for value in own])
        if new.any():
            self.vector.copy_(torch.from_numpy(new), non_blocking=True)
        else:
            self.vector.zero_()

    def read(self) -> list[dict[str, Array]]:
        values = np.split(np.array(self.vector.tolist()), np.cumsum(self._sizes)[:-1])
        result: list[dict[str, Array]] = [{} for _ in range(self._shapes[-1][0] + 1)]
        for (i, name, shape), value in zip(self._shapes, values, strict=True):
            result[i][name] = value.reshape(shape)
        return result


def polyak_step(gap: Tensor, squared_norm: Tensor) -> Tensor:
    """None where there is no gradient, or one so short that the step has no end."""
    return (gap / squared_norm).nan_to_num(nan=0.0, posinf=0.0)


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
        taken, dropped = {**numbers, "below": ()}, {"dropped": (), "dropped_loss": ()}
        self.numbers = Packed([taken, {**told, "updates": ()}, dropped], self.device)
        """Those of the batches that were taken, of the last update, and of the batches that were dropped.

        Besides the bundle's own: the lowest loss below the bound, the number of updates, and how many batches were
        dropped and the loss of the last of them.
        """
        self.dual = DualOnDevice(pieces + 1, self.device)
        self.zero = torch.zeros((), dtype=torch.float64, device=self.device)
        self._own = torch.eye(pieces + 1, dtype=torch.float64, device=self.device)
        self._last = self._own.narrow(0, pieces, 1)
        self._settings: tuple[tuple[Any, ...], Tensor] = ((), self.zero)
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
        numbers, told, dropped = self.numbers.read()
        info = self._describe(told) if told["updates"] > self._seen else None
        self._seen = int(told["updates"])
        self.is_ahead = False
        shared = {"dropped": int(dropped["dropped"]), "dropped_loss": float(dropped["dropped_loss"])}
        return {**self._plain(numbers), **shared, "below": float(numbers["below"])}, info

    def _send(self, numbers: Mapping[str, Any]) -> None:
        self.numbers.send({**numbers, "updates": self._seen})

    def _keep(
        self,
        ok: Tensor,
        updated: Tensor,
        loss: Tensor,
        more: Sections,
        now: dict[str, Tensor],
        told: dict[str, Tensor],
    ) -> None:
        """Write what is known after the batch; of ``more``, all numbers plus one, what the host is to tell."""
        told, dropped = {**told, "updates": more[1]["updates"]}, {**more[2], "dropped_loss": loss}
        self.numbers.put([now, told, dropped], where=[ok, updated, ok.logical_not()])
        self.is_ahead = True

    def _sent(self, *settings: Loss) -> Tensor:
        """Numbers of the host as a vector, which is made anew when one of them has changed."""
        if any(isinstance(x, Tensor) for x in settings):
            return torch.stack([number(x, self.device) for x in settings])
        if settings != self._settings[0]:
            self._settings = settings, torch.stack([number(x, self.device) for x in settings])
        return self._settings[1]

    def _total(self, vectors: Sequence[Tensor], size: int) -> Tensor:
        """The sum of what several flats have found, as so many numbers."""
        own = [vector.to(self.device, torch.float64) for vector in vectors]
        return reduce(torch.add, own) if own else self.zero.expand(size)

    def _folded(self, alpha: Tensor, is_there: Tensor) -> Tensor:
        """The weights, where those of pieces that are not there are the constant piece's, the last one."""
        return torch.mv(torch.where(is_there, self._own, self._last.mT), alpha)

    def _project(self, constraint: Constraint, tensors: list[Tensor], where: Tensor) -> None:
        """Project these tensors and the parameters that take no part, the latter only ``where`` it is true."""
        before, where = [p.clone() for p in self._others], where.reshape(())
        constraint(self._arranged(tensors))
        for p, old in zip(self._others, before, strict=True):
            p.copy_(torch.where(where.to(p.device), p, old))

    def _arranged(self, tensors: list[Tensor]) -> list[Tensor]:
        """Tensors of the flats, and the parameters that take no part, in the order of the optimizer's parameters."""
        both = [*tensors, *self._others]
        return [both[i] for i in self._order]
