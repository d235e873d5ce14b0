"""How a run is carried out: on which devices, by how many processes, compiled or not.

None of it belongs to the configuration of a run, since none of it should change what comes out.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from lightning.fabric.strategies.strategy import Strategy
from lightning_utilities.core import rank_zero as rank_zero_module
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from borat.checks import check_count, check_flag

GRACE = 5.0
"""Seconds that a process may take to end by itself after the one that started it."""
_FIRST = "BORAT_FIRST_PROCESS"
STRATEGIES = ("auto", "ddp", "fsdp")
ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")


@dataclass(frozen=True)
class Execution:
    """Where and how to train.

    Args:
        devices: how many processes, each with a device of its own; the batch is shared among them.
        strategy: ``"ddp"`` copies the model, ``"fsdp"`` spreads it (FSDP2); ``"auto"`` is DDP with several devices.
        accelerator: ``"cpu"``, ``"gpu"``, …; the best there is for ``"auto"``.
        compile: whether to compile the model.
        tensorboard: whether to write events for TensorBoard.
    """

    devices: int = 1
    strategy: str = "auto"
    accelerator: str = "auto"
    compile: bool = False
    tensorboard: bool = True

    def __post_init__(self) -> None:
        check_count("devices", self.devices)
        check_flag("compile", self.compile)
        check_flag("tensorboard", self.tensorboard)
        for name, allowed in (("strategy", STRATEGIES), ("accelerator", ACCELERATORS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def launch(self, precision: str) -> Fabric:
        """Start the processes; each goes on from here."""
        with _quiet_lightning():
            try:
                fabric = Fabric(
                    accelerator=self.accelerator,
                    devices=self.devices,
                    strategy=self._strategy(),
                    # models in float64 are so from the start: Fabric's own would give their scores in float32
                    precision="bf16-mixed" if precision == "bf16-mixed" else "32-true",
                )
            except (RuntimeError, ValueError) as error:
                raise ValueError(f"devices={self.devices}, accelerator={self.accelerator!r}: {error}") from error
            if self.devices > 1:
                _end_with_first()
            fabric.launch()
        if dist.is_initialized():
            atexit.register(_leave_processes)
        return fabric

    def _strategy(self) -> Strategy | str:
        if self.strategy == "fsdp":
            return ModelParallelStrategy(_shard, data_parallel_size=self.devices, tensor_parallel_size=1)
        return DDPStrategy() if self.strategy == "ddp" or self.devices > 1 else "auto"


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


class State:
    """Everything that training changes in a model and its optimizer, in a form that does not depend on the devices."""

    def __init__(self, fabric: Fabric, model: nn.Module, optimizer: Optimizer) -> None:
        self.fabric, self.model, self.optimizer = fabric, model, optimizer
        self.sharded = isinstance(fabric.strategy, ModelParallelStrategy)

    def get(self) -> dict[str, Any]:
        """Called by all processes. Shards are put together, so that any number of devices can go on."""
        if self.sharded:
            whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
            model, optimizer = get_state_dict(self.model, self.optimizer, options=whole)
        else:
            model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
        return {"model": model, "optimizer": optimizer, "random": self._gather(random_state(self.fabric.device))}

    def set(self, state: dict[str, Any]) -> None:
        if self.sharded and not state["optimizer"]["state"]:  # torch cannot spread what holds no tensor
            set_model_state_dict(self.model, state["model"], options=StateDictOptions(full_state_dict=True))
            for group, saved in zip(self.optimizer.param_groups, state["optimizer"]["param_groups"], strict=True):
                group.update({key: value for key, value in saved.items() if key != "params"})
        elif self.sharded:
            whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
            set_state_dict(
                self.model,
                self.optimizer,
                model_state_dict=state["model"],
                optim_state_dict=_by_name(state["optimizer"], self.model),
                options=whole,
            )
        else:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        if len(state["random"]) > self.fabric.global_rank:
            set_random_state(state["random"][self.fabric.global_rank], self.fabric.device)

    def _gather(self, value: Any) -> list[Any]:
        if self.fabric.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.fabric.world_size
        dist.all_gather_object(values, value)
        return values


def _by_name(state: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """The state of an optimizer with parameters called by their names, as where they are spread, not by numbers."""
    names = dict(enumerate(name for name, _ in model.named_parameters()))
    return {
        "state": {names.get(key, key): value for key, value in state["state"].items()},
        "param_groups": [
            {**group, "params": [names.get(key, key) for key in group["params"]]} for group in state["param_groups"]
        ],
    }


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The state of the generators that dropout draws from."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def sum_over_processes(fabric: Fabric, *numbers: float) -> list[float]:
    """Each number summed over the processes."""
    if fabric.world_size == 1:
        return list(numbers)
    total = torch.tensor(numbers, dtype=torch.float64, device=fabric.device)
    dist.all_reduce(total)
    return [float(x) for x in total]
