"""What a new batch tells the bundle, measured over all parameters and all processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from borat import sharding
from borat.dual import Array
from borat.parameters import View

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Loss = Tensor | float


class Sums(Protocol):
    """The inner products that are wanted of one part: a float64 vector. ``precise`` ones are taken in float64."""

    def __call__(self, view: View, *, precise: bool) -> Tensor | Array: ...


@dataclass(frozen=True)
class Measure:
    """Brings loss and inner products of a batch to the host, in one transfer after one small sum over the processes.

    Attributes:
        process_group: the processes that train together.
        reduce_loss: whether to average the loss over them.
        device: where to bring the numbers together.
        groups: the number of parameter groups.
    """

    process_group: ProcessGroup | None
    reduce_loss: bool
    device: torch.device
    groups: int

    def __call__(self, loss: Loss, views: Sequence[View], sums: Sums, columns: int) -> tuple[float, Array]:
        """The loss, and for each parameter group its sums in ``columns``."""
        processes = sharding.world_size(self.process_group)
        if processes > 1 and not self.reduce_loss and not any(view.part.is_sharded for view in views):
            processes = 1  # for the sums: each has its own
        found = [sums(view, precise=False) for view in views]
        if processes == 1 and all(isinstance(vector, np.ndarray) for vector in found):  # of our own, precise kernels
            return float(sharding.whole(loss) if isinstance(loss, Tensor) else loss), self._by_group(
                views, found, columns
            )
        value, products = self._gather(loss, views, found, columns, processes)
        if math.isfinite(value) and not np.isfinite(products).all():
            # A gradient with large entries may overflow float32 although it is finite.
            found = [sums(view, precise=True) for view in views]
            return self._gather(loss, views, found, columns, processes)
        return value, products

    def on_device(self, loss: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and sums of parameters that are not sharded, left on their device: nobody waits for them."""
        processes = sharding.world_size(self.process_group)
        if processes == 1 or not self.reduce_loss:
            return loss, sums
        numbers = torch.cat((loss.reshape(1), sums.reshape(-1))) / processes
        dist.all_reduce(numbers, group=self.process_group)
        return numbers[0], numbers[1:].view_as(sums)

    def _by_group(self, views: Sequence[View], found: Sequence[Any], columns: int) -> Array:
        if self.groups == len(found) == 1:
            alone: Array = found[0].reshape(1, columns)
            return alone
        products = np.zeros((self.groups, columns))
        for view, vector in zip(views, found, strict=True):
            products[view.group] += vector
        return products

    def _gather(
        self, loss: Loss, views: Sequence[View], found: Sequence[Tensor | Array], columns: int, processes: int
    ) -> tuple[float, Array]:
        numbers = torch.zeros(self.groups * columns + 1, dtype=torch.float64, device=self.device)
        for view, vector in zip(views, found, strict=True):
            place = slice(view.group * columns, (view.group + 1) * columns)
            holders = view.part.holders(processes) if processes > 1 else 1
            numbers[place] += torch.as_tensor(vector).to(self.device) / holders
        # A loss that is averaged already is the same on all processes, so that its mean does not change it.
        numbers[-1] = self._on_device(loss) / processes
        if processes > 1:
            dist.all_reduce(numbers, group=self.process_group)
        result = np.array(numbers.tolist())
        return float(result[-1]), result[:-1].reshape(self.groups, columns)

    def _on_device(self, loss: Loss) -> Loss:
        if not isinstance(loss, Tensor):
            return float(loss)
        return sharding.whole(loss.detach()).reshape(()).to(self.device, torch.float64)
