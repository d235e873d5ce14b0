"""Checkpoints that a run resumes from, on any number of devices."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.optim import Optimizer


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
