"""Sharded tensors (the DTensors of FSDP2), and sums over their shards.

The arithmetic of a bundle is elementwise except for inner products. Every process works on its shards, and only sums
are communicated: a process contributes its partial sum divided by the number of processes that hold the same shard.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(x: Tensor) -> TypeGuard[DTensor]:
    """Return True if ``x`` is a DTensor, without the slow import of the module of DTensors."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def local(x: Tensor) -> Tensor:
    """Return the shard of ``x`` on this process, sharing its memory."""
    return x.to_local() if is_sharded(x) else x


def redistribute_like(x: Tensor, reference: Tensor) -> Tensor:
    """Return ``x`` with the sharding of ``reference``."""
    if is_sharded(reference) and is_sharded(x) and x.placements != reference.placements:
        return x.redistribute(reference.device_mesh, reference.placements)
    return x


def wrap_rows_like(local_rows: Tensor, reference: Tensor) -> Tensor:
    """Return stacked shards of this process as one tensor whose rows have the sharding of ``reference``."""
    if not is_sharded(reference):
        return local_rows
    placements = [_next_dimension(p) if _splits(p) else p for p in reference.placements]
    whole = torch.empty((len(local_rows), *reference.shape), device="meta")
    return _wrap(local_rows, reference, placements, whole)


def wrap_like(local_tensor: Tensor, reference: Tensor) -> Tensor:
    """Return a tensor with the sharding of ``reference``, given this process's shard."""
    return _wrap(local_tensor, reference, reference.placements, reference) if is_sharded(reference) else local_tensor


def _wrap(local_tensor: Tensor, reference: DTensor, placements: Any, whole: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    mesh, shape, stride = reference.device_mesh, whole.shape, whole.stride()
    return DTensor.from_local(local_tensor, mesh, placements, run_check=False, shape=shape, stride=stride)


def count_replicas(x: Tensor, processes: int) -> int:
    """Return the number of processes, this one included, that hold the same shard of ``x``."""
    if not is_sharded(x):
        return processes
    shards = 1
    for size, placement in zip(x.device_mesh.shape, x.placements, strict=True):
        shards *= size if _splits(placement) else 1
    return max(processes // shards, 1)


def reduce_over_mesh(number: Tensor, reference: Tensor, *, largest: bool = False) -> Tensor:
    """Reduce a number over the shards of ``reference``, by the sum or the maximum."""
    if is_sharded(reference):
        operation = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
        for dim, placement in enumerate(reference.placements):
            if _splits(placement):
                dist.all_reduce(number, operation, group=reference.device_mesh.get_group(dim))
    return number


def _splits(placement: Any) -> bool:
    """Return True if a placement shards its mesh dimension; PyTorch has several such placements."""
    return not (placement.is_replicate() or placement.is_partial())


def _next_dimension(shard: Any) -> Any:
    """Return the same placement for a tensor with one more leading dimension."""
    if hasattr(shard, "split_factor"):
        return type(shard)(shard.dim + 1, split_factor=shard.split_factor)
    return type(shard)(shard.dim + 1)


def full_tensor(x: Tensor) -> Tensor:
    """Return ``x`` unsharded, on every process."""
    return x.full_tensor() if is_sharded(x) else x


def discard_gathered_copies() -> None:
    """Make FSDP2 gather its parameters again before the next forward pass.

    After a forward pass without a backward pass, FSDP2 may keep them gathered and ignore changes of the shards.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    states = sys.modules.get("torch.distributed._composable_state")
    if fsdp is not None and states is not None:
        for module in list(states._module_state_mapping):
            if isinstance(module, fsdp.FSDPModule):
                module.reshard()


def mesh_of(x: Tensor) -> Any:
    """Return a key of the processes over which sums of ``x`` are reduced."""
    return (x.device_mesh, x.placements) if is_sharded(x) else None
