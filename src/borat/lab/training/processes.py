"""The processes that train one model together: how they start, compute and end."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from lightning.fabric.strategies.strategy import Strategy
from lightning_utilities.core import rank_zero as rank_zero_module
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from borat.lab.config import Execution
from borat.lab.signals import ctrl_c_blocked, unblock_ctrl_c

GRACE = 5.0
"""Seconds that a process may take to end by itself after the one that started it."""
_FIRST = "BORAT_FIRST_PROCESS"
LOOPBACK = "127.0.0.1"
_STORE_IS_THERE = "TORCHELASTIC_USE_AGENT_STORE"
"""Tells PyTorch, as its own launcher does, to join the store at the address instead of opening it."""
_ARRIVED = "borat/arrived"
"""Key of the store that counts the processes that have started."""
_STORES: list[TCPStore] = []
"""Stores where processes meet, kept until this process ends."""


def launch(execution: Execution, precision: str) -> Fabric:
    """Start the processes; each goes on from here."""
    with _quiet_lightning():
        try:
            fabric = Fabric(
                accelerator=execution.accelerator,
                devices=execution.devices,
                strategy=_strategy(execution),
                # models in float64 are so from the start: Fabric's own would give their scores in float32
                precision="bf16-mixed" if precision == "bf16-mixed" else "32-true",
            )
        except (RuntimeError, ValueError) as error:
            where = f"devices={execution.devices}, accelerator={execution.accelerator!r}"
            raise ValueError(f"{where}: {error}") from error
        several = execution.devices > 1
        if several:
            _end_with_first()
        with _meeting_on_loopback(fabric), _together(fabric), ctrl_c_blocked() if several else nullcontext():
            fabric.launch()
    if dist.is_initialized():
        atexit.register(_leave_processes)
    return fabric


def _strategy(execution: Execution) -> Strategy | str:
    if execution.strategy == "fsdp":
        return _PatientFSDP(_shard, data_parallel_size=execution.devices, tensor_parallel_size=1)
    return _PatientDDP() if execution.strategy == "ddp" or execution.devices > 1 else "auto"


class _Patient(Strategy):
    """Waits for the processes that it has started where Ctrl-C is heard, which it is not where PyTorch waits."""

    def setup_environment(self) -> None:
        unblock_ctrl_c()
        while _STORES and _STORES[-1].add(_ARRIVED, 0) + 1 < self.num_processes:  # type: ignore[attr-defined]
            time.sleep(0.05)
        super().setup_environment()


class _PatientDDP(_Patient, DDPStrategy):
    pass


class _PatientFSDP(_Patient, ModelParallelStrategy):
    pass


def sum_over_processes(fabric: Fabric, *numbers: float) -> list[float]:
    """Each number summed over the processes."""
    if fabric.world_size == 1:
        return list(numbers)
    total = torch.tensor(numbers, dtype=torch.float64, device=fabric.device)
    dist.all_reduce(total)
    return [float(x) for x in total]


@contextmanager
def without_denormals() -> Iterator[None]:
    """Take numbers below 1e-38 for zero: they slow CPUs down, up to 16 times in a network that has blown up."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _end_with_first() -> None:
    """Let the processes that Fabric starts end with this one, from which they inherit its number.

    Killed while they start, it would leave them behind: they wait long for it where all meet.
    """
    first = int(os.environ.setdefault(_FIRST, str(os.getpid())))
    if first != os.getpid() and "LOCAL_RANK" in os.environ:
        threading.Thread(target=_follow, args=(first,), daemon=True).start()


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    time.sleep(GRACE)
    os._exit(1)


@contextmanager
def _meeting_on_loopback(fabric: Fabric) -> Iterator[None]:
    """Let processes that are started here meet where no other machine can reach them; by itself, PyTorch would listen
    on all interfaces. Where processes are started by others, or are told where to meet, that is respected.
    """
    here = isinstance(getattr(fabric.strategy, "cluster_environment", None), LightningEnvironment)
    if not here or os.environ.get("MASTER_ADDR", LOOPBACK) != LOOPBACK:
        yield
        return
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    for library in ("GLOO", "NCCL"):
        if loopback is not None:
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", loopback)
    if "LOCAL_RANK" not in os.environ:
        listener = socket.create_server((LOOPBACK, 0))
        port, fd = listener.getsockname()[1], listener.detach()
        _STORES.append(TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=fd))
        os.environ |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port), _STORE_IS_THERE: "True"}
    elif _STORE_IS_THERE in os.environ:
        TCPStore(LOOPBACK, int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False).add(_ARRIVED, 1)
    try:
        yield
    finally:
        os.environ.pop(_STORE_IS_THERE, None)


@contextmanager
def _together(fabric: Fabric) -> Iterator[None]:
    """End the processes that were started if they cannot start all."""
    try:
        yield
    except BaseException:
        started = getattr(fabric.strategy.launcher, "procs", [])
        ours = list(started)
        started.clear()  # or Fabric, which watches them, would kill this process too
        for process in ours:
            process.kill()
        for process in ours:
            process.wait()
        raise


def _leave_processes() -> None:
    """End gloo's threads before the interpreter does: one that then gives a tensor back would abort the process.

    Those of FSDP stay, since PyTorch's caches hold on to them; a moment later they have nothing to give back.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
        time.sleep(0.5)


def _shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Spread each layer that holds most of its parameters itself, then what is left."""
    total = sum(p.numel() for p in model.parameters())
    for layer in model.children():
        if sum(p.numel() for p in layer.parameters()) >= 0.1 * total:
            fully_shard(layer, mesh=mesh["data_parallel"])
    fully_shard(model, mesh=mesh["data_parallel"])
    return model


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Keep what Fabric says of starting processes to itself."""
    loggers = (logging.getLogger("lightning.fabric"), rank_zero_module.log)
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        try:
            for logger in loggers:
                logger.setLevel(logging.WARNING)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
