"""What a new batch tells the bundle, measured over all parameters and all processes."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from borat import sharding
from borat.dual import Array
from borat.slots import Part

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def measure(
    loss: Tensor | float,
    parts: list[Part],
    groups: int,
    position: int,
    process_group: ProcessGroup | None,
    *,
    device: torch.device,
    reduce_loss: bool,
) -> tuple[float, Array]:
    """The loss, and for each parameter group the products of the gradient with those in the bundle and with itself.

    Args:
        loss: the loss of the batch, on this process.
        parts: the parameters and their gradients.
        groups: the number of parameter groups.
        position: the number of gradients in the bundle.
        process_group: the processes that train together.
        device: where to bring the numbers together.
        reduce_loss: whether to average the loss over them.
    """
    processes = sharding.world_size(process_group)
    gather = partial(_gather, loss, parts, groups, position, process_group, processes, device, reduce_loss)
    value, products = gather(precise=False)
    if math.isfinite(value) and not np.isfinite(products).all():
        return gather(precise=True)  # a gradient with large entries may overflow float32 although it is finite
    return value, products


def _gather(
    loss: Tensor | float,
    parts: list[Part],
    groups: int,
    position: int,
    process_group: ProcessGroup | None,
    processes: int,
    device: torch.device,
    reduce_loss: bool,
    *,
    precise: bool,
) -> tuple[float, Array]:
    """Bring all numbers to the host in one transfer, after one small sum over the processes."""
    columns = position + 1
    numbers = torch.zeros(groups * columns + 1, dtype=torch.float64, device=device)
    summed = processes > 1 and (reduce_loss or any(part.is_sharded for part in parts))
    for part in parts:
        products = part.products(position, precise=precise).to(device)
        numbers[part.group * columns : (part.group + 1) * columns] += (
            products / part.holders(processes) if summed else products
        )
    # A loss that is averaged already is the same on all processes, so that its mean does not change it.
    own = (
        sharding.whole(loss.detach()).reshape(()).to(device, torch.float64) if isinstance(loss, Tensor) else float(loss)
    )
    numbers[-1] = own / processes if summed else own
    if summed:
        dist.all_reduce(numbers, group=process_group)
    result = np.array(numbers.tolist())
    return float(result[-1]), result[:-1].reshape(groups, columns)
