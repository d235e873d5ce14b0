"""Optimizers and losses by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from borat.constraints import L2Ball
from borat.lab.config import RunConfig
from borat.losses import MultiClassHingeLoss, TopKCrossEntropyLoss
from borat.optimizer import ALIG, BORAT

Parameters = Iterable[nn.Parameter]


def _sgd(params: Parameters, config: RunConfig) -> Optimizer:
    return torch.optim.SGD(
        params, config.lr, momentum=config.momentum, nesterov=config.momentum > 0, weight_decay=config.weight_decay
    )


def _torch(kind: Callable[..., Optimizer], **options: Any) -> Callable[[Parameters, RunConfig], Optimizer]:
    def make(params: Parameters, config: RunConfig) -> Optimizer:
        return kind(params, lr=config.lr, weight_decay=config.weight_decay, **options)

    return make


def _borat(params: Parameters, config: RunConfig) -> Optimizer:
    return BORAT(params, config.lr, config.bundle_size, momentum=config.momentum, constraint=_ball(config))


def _alig(params: Parameters, config: RunConfig) -> Optimizer:
    return ALIG(params, config.lr, momentum=config.momentum, constraint=_ball(config))


OPTIMIZERS: dict[str, Callable[[Parameters, RunConfig], Optimizer]] = {
    "borat": _borat,
    "alig": _alig,
    "sgd": _sgd,
    "adam": _torch(torch.optim.Adam),
    "amsgrad": _torch(torch.optim.Adam, amsgrad=True),
    "adamw": _torch(torch.optim.AdamW),
    "adagrad": _torch(torch.optim.Adagrad),
    "rmsprop": _torch(torch.optim.RMSprop),
}


def make_optimizer(model: nn.Module, config: RunConfig) -> Optimizer:
    """The optimizer of a run. Where it knows no constraint, the radius is enforced after each of its steps."""
    if config.optimizer not in OPTIMIZERS:
        near = difflib.get_close_matches(config.optimizer, OPTIMIZERS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(OPTIMIZERS)}"
        raise ValueError(f"unknown optimizer {config.optimizer!r}; {hint}")
    optimizer = OPTIMIZERS[config.optimizer](model.parameters(), config)
    ball = _ball(config)
    if ball is not None and not isinstance(optimizer, BORAT):
        ball(model.parameters())
        optimizer.register_step_post_hook(lambda *_: ball(model.parameters()))
    if isinstance(optimizer, BORAT) and config.weight_decay:
        raise ValueError(f"weight_decay does not apply to {config.optimizer}: use radius, got {config.weight_decay}")
    return optimizer


def make_loss(config: RunConfig) -> nn.Module:
    losses = {"ce": nn.CrossEntropyLoss, "hinge": MultiClassHingeLoss, "top5": TopKCrossEntropyLoss}
    loss: nn.Module = losses[config.loss]()
    return loss


def _ball(config: RunConfig) -> L2Ball | None:
    return None if config.radius is None else L2Ball(config.radius)
