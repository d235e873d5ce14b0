"""Construction of optimizers and losses from a configuration."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from pkgutil import resolve_name
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from borat._state import sharding
from borat.constraints import L2Ball
from borat.lab.config import LOSSES, RunConfig, check_method
from borat.lab.methods import METHODS, Method


def make_optimizer(model: nn.Module, config: RunConfig) -> Optimizer:
    """Return the optimizer of a run. If it takes no constraint, the weights are projected after each step."""
    check_optimizer(config)
    method = METHODS[config.optimizer]
    if not method.shards and any(map(sharding.is_sharded, model.parameters())):
        raise ValueError(f"{config.optimizer} cannot train a sharded model: use ddp, not fsdp")
    params = [p for p in model.parameters() if p.requires_grad]
    ball = None if config.radius is None else L2Ball(config.radius)
    arguments = {key: getattr(config, key) for key in method.takes if key != "radius"} | dict(method.options)
    if "radius" in method.takes:
        arguments["constraint"] = ball
    with redirect_stdout(io.StringIO()):  # Prodigy prints a remark about weight decay
        optimizer = _find_class(method)(model if method.takes_model else params, lr=config.lr, **arguments)
    if ball is not None and "radius" not in method.takes:
        ball(params)
        optimizer.register_step_post_hook(lambda *_: ball(params))
    return optimizer


def check_optimizer(config: RunConfig) -> None:
    """Raise a ValueError for an optimizer that is not installed or does not support the loss or the weight decay."""
    check_method(config)
    method = METHODS[config.optimizer]
    if config.weight_decay and "weight_decay" not in method.takes:
        raise ValueError(f"weight_decay does not apply to {config.optimizer}: use radius, got {config.weight_decay}")
    _find_class(method)


def _find_class(method: Method) -> Callable[..., Optimizer]:
    """Return the class of a method; raise a ValueError if its library is not installed."""
    try:
        return resolve_name(method.optimizer) if isinstance(method.optimizer, str) else method.optimizer
    except ModuleNotFoundError as error:
        raise ValueError(f"this optimizer needs {error.name}, which is missing: pip install 'borat[peers]'") from error


def make_loss(config: RunConfig) -> nn.Module:
    """Return the loss of a run."""
    return resolve_name(LOSSES[config.loss])()


def sgd(params: list[nn.Parameter], lr: float, momentum: float, **options: Any) -> Optimizer:
    """Return SGD, with Nesterov momentum unless ``momentum`` is 0."""
    return torch.optim.SGD(params, lr=lr, momentum=momentum, nesterov=momentum > 0.0, **options)


def nadamw(params: list[nn.Parameter], lr: float, **options: Any) -> Optimizer:
    """Return NAdam with decoupled weight decay."""

    def keep_types(optimizer: Optimizer, *_: Any) -> None:
        for p, state in optimizer.state.items():  # created in float32, but loaded in the parameter's dtype
            state["mu_product"] = state["mu_product"].to(p.dtype)

    optimizer = torch.optim.NAdam(params, lr=lr, decoupled_weight_decay=True, **options)
    optimizer.register_step_post_hook(keep_types)
    return optimizer
