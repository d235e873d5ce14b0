"""Checkpoints from which a run can resume on any number of devices."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp
from torch.optim import Optimizer

WHOLE = dcp.StateDictOptions(full_state_dict=True, cpu_offload=True)


class State:
    """State of a model, its optimizer and the random generators, in a form that does not depend on the devices."""

    def __init__(self, fabric: Fabric, model: nn.Module, optimizer: Optimizer) -> None:
        self.fabric, self.model, self.optimizer = fabric, model, optimizer
        self.is_sharded = isinstance(fabric.strategy, ModelParallelStrategy)

    def get(self) -> dict[str, Any]:
        """Return the state, with shards gathered; all processes must call it."""
        if self.is_sharded:
            model, optimizer = dcp.get_state_dict(self.model, self.optimizer, options=WHOLE)
        else:
            model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
        device, random = self.fabric.device, {"cpu": torch.get_rng_state()}  # used by dropout
        if device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(device)
        every: list[Any] = [random] * self.fabric.world_size
        if len(every) > 1:
            dist.all_gather_object(every, random)
        return {"model": model, "optimizer": optimizer, "random": every}

    def set(self, state: dict[str, Any]) -> None:
        """Restore a state that :meth:`get` returned, possibly on other devices."""
        if not self.is_sharded:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        else:
            dcp.set_model_state_dict(self.model, state["model"], options=WHOLE)
            optimizer = _by_name(state["optimizer"], self.model)
            if optimizer["state"]:
                dcp.set_optimizer_state_dict(self.model, self.optimizer, optimizer, options=WHOLE)
            else:  # PyTorch cannot shard an optimizer's state without tensors
                for group, saved in zip(self.optimizer.param_groups, optimizer["param_groups"], strict=True):
                    group.update({key: value for key, value in saved.items() if key != "params"})
        if len(state["random"]) > self.fabric.global_rank:
            random, device = state["random"][self.fabric.global_rank], self.fabric.device
            torch.set_rng_state(random["cpu"])
            if device.type == "cuda" and "cuda" in random:
                torch.cuda.set_rng_state(random["cuda"], device)


def _by_name(state: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """Return an optimizer's state with parameters identified by name, as for sharded models, not by number."""
    names = dict(enumerate(name for name, _ in model.named_parameters()))
    return {
        "state": {names.get(key, key): value for key, value in state["state"].items()},
        "param_groups": [
            {**group, "params": [names.get(key, key) for key in group["params"]]} for group in state["param_groups"]
        ],
    }
