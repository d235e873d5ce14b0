"""Processes that train one model together: launch, reductions and shutdown."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import socket
import tempfile
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
from torch import nn
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from borat.lab.config import Execution
from borat.lab.signals import ctrl_c_blocked, unblock_ctrl_c

GRACE = 5.0
"""Seconds in which a process may exit by itself after its parent has exited."""
LOOPBACK = "127.0.0.1"
_FIRST = "BORAT_FIRST_PROCESS"
"""Environment variable for the PID of the first process."""
_RENDEZVOUS = "BORAT_RENDEZVOUS"
"""Environment variable for the file through which the processes rendezvous."""


def launch(execution: Execution, precision: str) -> Fabric:
    """Start the processes; each of them returns from this function."""
    several = execution.devices > 1
    strategy: Strategy | str = _RendezvousDDP() if execution.strategy == "ddp" or several else "auto"
    if execution.strategy == "fsdp":
        strategy = _RendezvousFSDP(_shard, data_parallel_size=execution.devices, tensor_parallel_size=1)
    with _quiet_lightning():
        try:
            fabric = Fabric(
                accelerator=execution.accelerator,
                devices=execution.devices,
                strategy=strategy,
                # float64 models are created as such: Fabric's own precision would return scores in float32
                precision="bf16-mixed" if precision == "bf16-mixed" else "32-true",
            )
        except (RuntimeError, ValueError) as error:
            where = f"devices={execution.devices}, accelerator={execution.accelerator!r}"
            raise ValueError(f"{where}: {error}") from error
        if several:
            _exit_with_first()
        _rendezvous_on_this_machine(fabric)
        with _killing_if_incomplete(fabric), ctrl_c_blocked() if several else nullcontext():
            fabric.launch()
    if dist.is_initialized():
        atexit.register(_destroy_process_group)
    return fabric


def sum_over_processes(fabric: Fabric, *numbers: float) -> list[float]:
    """Return each number summed over the processes."""
    if fabric.world_size == 1:
        return list(numbers)
    total = torch.tensor(numbers, dtype=torch.float64, device=fabric.device)
    dist.all_reduce(total)
    return [float(x) for x in total]


@contextmanager
def without_denormals() -> Iterator[None]:
    """Flush denormal numbers to zero: they slow CPUs down, up to 16 times in a network that has diverged."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


class _Rendezvous(Strategy):
    """Rendezvous in Python, which Ctrl-C can interrupt, unlike PyTorch's own."""

    def setup_environment(self) -> None:
        unblock_ctrl_c()
        if _RENDEZVOUS in os.environ and not dist.is_initialized():
            count = self.num_processes  # type: ignore[attr-defined]
            store = FileStore(os.environ[_RENDEZVOUS], count)
            store.add("arrived", 1)
            while store.add("arrived", 0) < count:
                time.sleep(0.05)
            backend = self._get_process_group_backend()  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=store, rank=int(os.environ.get("LOCAL_RANK", 0)), world_size=count)
        super().setup_environment()


class _RendezvousDDP(_Rendezvous, DDPStrategy):
    pass


class _RendezvousFSDP(_Rendezvous, ModelParallelStrategy):
    pass


def _rendezvous_on_this_machine(fabric: Fabric) -> None:
    """Let processes that are started here rendezvous through a file and communicate over loopback.

    By default, PyTorch would open a port on all interfaces. Processes that another program started, or that have a
    master address, use that address.
    """
    is_local = isinstance(getattr(fabric.strategy, "cluster_environment", None), LightningEnvironment)
    if not is_local or os.environ.get("MASTER_ADDR", LOOPBACK) != LOOPBACK:
        return
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    for library in ("GLOO", "NCCL"):
        if loopback is not None:
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", loopback)
    if "LOCAL_RANK" not in os.environ:
        folder = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ[_RENDEZVOUS] = f"{folder}/rendezvous"


def _exit_with_first() -> None:
    """Make the processes that Fabric starts exit with this one, whose PID they inherit.

    Otherwise they would wait for a long time if it is killed while they start.
    """
    first = int(os.environ.setdefault(_FIRST, str(os.getpid())))

    def follow() -> None:
        while os.getppid() == first:
            time.sleep(1.0)
        time.sleep(GRACE)
        os._exit(1)

    if first != os.getpid() and "LOCAL_RANK" in os.environ:
        threading.Thread(target=follow, daemon=True).start()


@contextmanager
def _killing_if_incomplete(fabric: Fabric) -> Iterator[None]:
    """Kill the started processes if not all of them start."""
    try:
        yield
    except BaseException:
        started = getattr(fabric.strategy.launcher, "procs", [])
        ours = list(started)
        started.clear()  # otherwise Fabric, which watches them, would kill this process as well
        for process in ours:
            process.kill()
        for process in ours:
            process.wait()
        raise


def _destroy_process_group() -> None:
    """End gloo's threads before the interpreter exits: a thread that releases a tensor later would abort the process.

    FSDP's threads stay, because PyTorch's caches refer to them; after a moment they have nothing to release.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
        time.sleep(0.5)


def _shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard each layer with at least a tenth of the parameters, then the rest of the model."""
    total = sum(p.numel() for p in model.parameters())
    for layer in model.children():
        if sum(p.numel() for p in layer.parameters()) >= 0.1 * total:
            fully_shard(layer, mesh=mesh["data_parallel"])
    fully_shard(model, mesh=mesh["data_parallel"])
    return model


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Hide Fabric's messages about starting processes."""
    logging.disable(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            yield
    finally:
        logging.disable(logging.NOTSET)
