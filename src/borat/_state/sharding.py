"""Tensors that are spread over several processes (DTensor, as FSDP2 makes them) and the sums over all of them.

The arithmetic of a bundle is elementwise but for inner products. So every process works on the part of a tensor that it
holds, and only sums are communicated: of each number, a process contributes its share divided by the number of
processes that hold the same data.
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
    """Return True if ``x`` is a DTensor. There is none before the module is imported, which takes a while."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def local(x: Tensor) -> Tensor:
    """The part of ``x`` that this process holds, sharing its memory."""
    return x.to_local() if is_sharded(x) else x


def like(x: Tensor, reference: Tensor) -> Tensor:
    """``x`` spread over the processes as ``reference`` is."""
    if is_sharded(reference) and is_sharded(x) and x.placements != reference.placements:
        return x.redistribute(reference.device_mesh, reference.placements)
    return x


def stacked(local_rows: Tensor, reference: Tensor) -> Tensor:
    """Return rows that each process holds for its part of ``reference`` as rows of the whole."""
    if not is_sharded(reference):
        return local_rows
    placements = [_next_dimension(p) if _splits(p) else p for p in reference.placements]
    whole = torch.empty((len(local_rows), *reference.shape), device="meta")
    return _wrap(local_rows, reference, placements, whole)


def wrap_like(local_tensor: Tensor, reference: Tensor) -> Tensor:
    """Return what this process holds, spread over the processes as ``reference`` is."""
    return _wrap(local_tensor, reference, reference.placements, reference) if is_sharded(reference) else local_tensor


def _wrap(local_tensor: Tensor, reference: DTensor, placements: Any, whole: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    mesh, shape, stride = reference.device_mesh, whole.shape, whole.stride()
    return DTensor.from_local(local_tensor, mesh, placements, run_check=False, shape=shape, stride=stride)


def holders(x: Tensor, processes: int) -> int:
    """Return the number of processes that hold the same part of ``x`` as this one."""
    if not is_sharded(x):
        return processes
    shards = 1
    for size, placement in zip(x.device_mesh.shape, x.placements, strict=True):
        shards *= size if _splits(placement) else 1
    return max(processes // shards, 1)


def over_mesh(number: Tensor, reference: Tensor, *, largest: bool = False) -> Tensor:
    """The sum (or the largest) of what each process found in its part of ``reference``."""
    if is_sharded(reference):
        operation = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
        for dim, placement in enumerate(reference.placements):
            if _splits(placement):
                dist.all_reduce(number, operation, group=reference.device_mesh.get_group(dim))
    return number


def _splits(placement: Any) -> bool:
    """Return True if the processes of a mesh dimension hold different parts; there are several kinds of shards."""
    return not (placement.is_replicate() or placement.is_partial())


def _next_dimension(shard: Any) -> Any:
    """The same shard of a tensor with one more dimension in front."""
    if hasattr(shard, "split_factor"):
        return type(shard)(shard.dim + 1, split_factor=shard.split_factor)
    return type(shard)(shard.dim + 1)


def whole(x: Tensor) -> Tensor:
    """All of ``x``, on every process."""
    return x.full_tensor() if is_sharded(x) else x


def discard_gathered_copies() -> None:
    """Let FSDP2 gather its parameters again before the next forward pass.

    After a forward pass without a backward one it may keep them gathered, and would not notice that the shards have
    changed since.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    states = sys.modules.get("torch.distributed._composable_state")
    if fsdp is not None and states is not None:
        for module in list(states._module_state_mapping):
            if isinstance(module, fsdp.FSDPModule):
                module.reshard()


def mesh_of(x: Tensor) -> Any:
    """Return a key that differs between tensors that are summed over different processes."""
    return (x.device_mesh, x.placements) if is_sharded(x) else None
