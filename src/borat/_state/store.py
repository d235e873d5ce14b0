"""Storage of the algorithm's numbers, on the host or on the parameters' device, and the sums of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from borat._numbers.ops import choose, host_ops
from borat._numbers.torch_ops import torch_ops
from borat._state.slots import Batch
from borat._vectors.torch import COMPILED_DEVICES, call_compiled

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Loss = Tensor | float
Array = npt.NDArray[np.float64]


def world_size(group: ProcessGroup | None) -> int:
    """Return the number of processes in a group (all if None); 1 if ``torch.distributed`` is not initialised."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


class Store:
    """The state of an algorithm and the description of its last update.

    A state is a ``NamedTuple`` of numbers. On a device these are tensors of fixed shapes that are updated in place,
    without device syncs.

    Args:
        state: the state, on the host.
        pieces: the number of linear pieces of a full bundle.
    """

    def __init__(self, state: Any, pieces: int) -> None:
        self.state = state
        self.info: Any = None
        """Numbers that describe the last update; None before the first."""
        self.device: torch.device | None = None
        """The device of the numbers; None for the host."""
        self._pieces = pieces
        self._ops = host_ops(pieces)
        self._host: tuple[Any, Any] | None = None
        self._converted: tuple[tuple[Any, ...], Tensor] = ((), torch.empty(0))

    def update(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Apply a function of the algorithm to the state, and return the step."""
        if self.device is None:
            with np.errstate(all="ignore"):  # batches that are not finite are dropped
                self.state, info, step = function(self._ops, self.state, *args, **options)
            if step.completes:
                self.info = info
            return step
        state, info, step = self._call(function, *args, **options)
        if self.info is None:
            self.info = info._make(torch.zeros_like(x) for x in info)
        info = choose(self._ops, step.completes, info, self.info)
        torch._foreach_copy_([*self.state, *self.info], [*state, *info])
        self._host = None
        return step

    def _call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        device = self.device
        is_compiled = device is not None and device.type in COMPILED_DEVICES and type(self.state[0]) is Tensor
        if is_compiled and not torch.compiler.is_compiling():
            return call_compiled(function, self._ops, self.state, *args, **options)
        return function(self._ops, self.state, *args, **options)

    def measure(
        self,
        loss: Loss,
        batch: Batch,
        products: tuple[str, Any],
        shape: tuple[int, int],
        group: ProcessGroup | None,
        reduce_loss: bool,
    ) -> tuple[Any, Any]:
        """Return the loss, averaged over processes, and the inner products, summed over parameters and processes.

        Args:
            batch: the parameters and their vectors.
            products: the vector operation that computes the products, by name, and its argument.
            shape: number of parameter groups, and of products for each.
            group: the processes that train together; None for all.
            reduce_loss: if True, average the loss over these processes.
        """
        count = world_size(group)
        if count > 1 and not reduce_loss and not any(part.is_sharded for part, _ in batch):
            count = 1  # no communication: each process has its own loss and sums
        name, argument = products
        found = [getattr(vectors, name)(argument) for _, vectors in batch]
        if self.device is not None:
            numbers = self._total(loss, batch, found, shape, count, group)
            first, rest = numbers.split_with_sizes((1, len(numbers) - 1))
            return first.reshape(()), rest.reshape(shape)
        if count == 1 and all(isinstance(x, np.ndarray) for x in found):
            if len(found) == shape[0] == 1:
                return float(loss), found[0].reshape(shape)
            by_group = np.zeros(shape)
            for (part, _), x in zip(batch, found, strict=True):
                by_group[part.group] += x
            return float(loss), by_group
        value, *sums = self._total(loss, batch, found, shape, count, group).tolist()
        if math.isfinite(value) and not all(map(math.isfinite, sums)):
            # Products of finite gradients with large entries may overflow float32: compute them again in float64.
            found = [
                x if isinstance(x, np.ndarray) else getattr(vectors, name)(argument, in_float64=True)
                for x, (_, vectors) in zip(found, batch, strict=True)
            ]
            value, *sums = self._total(loss, batch, found, shape, count, group).tolist()
        return value, np.array(sums).reshape(shape)

    def _total(
        self, loss: Loss, batch: Batch, found: Sequence[Any], shape: tuple[int, int], count: int, group: Any
    ) -> Tensor:
        """Return the loss and all sums as one vector, over parameters and processes, without a device sync."""
        groups, columns = shape
        tensors = [torch.as_tensor(x) for x in found]
        device = self.device or (tensors[0].device if tensors else torch.device("cpu"))
        sums = [torch.zeros(columns, dtype=torch.float64, device=device)] * groups
        for (part, _), x in zip(batch, tensors, strict=True):
            sums[part.group] = sums[part.group] + x.to(device) / (part.count_replicas(count) if count > 1 else 1)
        # A loss that is already averaged is the same on all processes, so averaging it again changes nothing.
        numbers = torch.cat(((_number(loss, device) / count).reshape(1), *sums))
        if count > 1:
            dist.all_reduce(numbers, group=group)
        return numbers

    def convert(self, *values: Loss, scalars: int) -> Any:
        """Convert options to the kind of number in use: the first ``scalars`` as scalars, the others as one vector."""
        if self.device is None:
            numbers = [float(x) for x in values]
            return *numbers[:scalars], np.array(numbers[scalars:])
        if any(isinstance(x, Tensor) for x in values) or values != self._converted[0]:
            self._converted = values, torch.stack([_number(x, self.device) for x in values])
        first, rest = self._converted[1].split_with_sizes((scalars, len(values) - scalars))
        return *first.unbind(), rest

    def sync(self) -> tuple[Any, Any]:
        """Return state and description as numbers on the host, after a device sync if they are on a device."""
        if self.device is None:
            return self.state, self.info
        if self._host is None:
            tensors = [*self.state, *(self.info or ())]
            values = np.array(torch.cat([x.reshape(-1) for x in tensors]).tolist())
            arrays = np.split(values, list(accumulate(x.numel() for x in tensors[:-1])))
            plain = [_plain(x, tensor) for x, tensor in zip(arrays, tensors, strict=True)]
            count = len(self.state)
            info = None if self.info is None else self.info._make(plain[count:])
            self._host = self.state._make(plain[:count]), info
        return self._host

    def move_to(self, device: torch.device | None) -> None:
        """Move the numbers to a device, or to the host if it is None."""
        self.state, self.info = self.sync()
        self.device, self._host = device, None
        self._ops = host_ops(self._pieces) if device is None else torch_ops(self._pieces, device)
        if device is not None:
            self.state = self.state._make(_tensor(x, device) for x in self.state)
            if self.info is not None:
                self.info = self.info._make(_tensor(x, device) for x in self.info)


def _plain(array: Any, tensor: Tensor) -> Any:
    return array.reshape(tuple(tensor.shape)) if tensor.dim() else float(array[0])


def _tensor(x: Any, device: torch.device) -> Tensor:
    array = np.asarray(x, dtype=np.float64)
    if array.ndim == 0:
        return torch.full((), float(array), dtype=torch.float64, device=device)
    if not array.any():
        return torch.zeros(array.shape, dtype=torch.float64, device=device)
    return torch.from_numpy(array.copy()).to(device, non_blocking=True)


def _number(x: Loss, device: torch.device) -> Tensor:
    """Return a number as a float64 tensor on the device, without a device sync."""
    if not isinstance(x, Tensor):
        return torch.full((), float(x), dtype=torch.float64, device=device)
    if x.device.type == "cpu":
        return torch.zeros((), dtype=torch.float64, device=device) + x.detach().reshape(())
    return x.detach().reshape(()).to(device, torch.float64)
