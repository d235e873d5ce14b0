"""Optimizers by name.

``lr`` is passed to all of them, and means what it means there. ``momentum`` is passed where the column says so; Adam
and its relatives keep their own averages. ``weight_decay`` is the coefficient of an L2 term in the loss, but where it
is decoupled from the gradient (†) or proximal (‡).

============= ========================= ========================= ======== =================================
name          from                      lr                        advised  momentum
============= ========================= ========================= ======== =================================
borat         this library              largest step size         0.1      Nesterov; no weight decay
alig          this library              largest step size         0.1      Nesterov; no weight decay
sgd           torch                     step size                 0.1      Nesterov
adagrad       torch                     step size                 0.01
adam          torch                     step size                 0.001
amsgrad       torch                     step size                 0.001
adamw †       torch                     step size                 0.001
rmsprop       torch                     step size                 0.01
yogi          pytorch_optimizer         step size                 0.01
dfw           here                      proximal coefficient      0.1      Nesterov; hinge losses only
bpgrad        here                      1 / Lipschitz constant    0.02     heavy ball
l4adam        here                      fraction of the gap       0.15
l4mom         here                      fraction of the gap       0.15     average of gradients
sps           here                      largest step size         1
momo ‡        momo-opt                  largest step size         1        average of gradients
momo-adam ‡   momo-opt                  largest step size         0.01
prodigy †     prodigyopt                factor of the estimate    1
schedule-free schedulefree (SGD)        step size                 1        between the step and the average
dog           dog-optimizer             factor of the estimate    1
============= ========================= ========================= ======== =================================
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from borat import sharding
from borat.constraints import L2Ball
from borat.lab.baselines.bpgrad import BPGrad
from borat.lab.baselines.dfw import DFW
from borat.lab.baselines.l4 import L4Adam, L4Mom
from borat.lab.baselines.losses import check_loss_suits
from borat.lab.baselines.sps import SPS
from borat.lab.config import RunConfig
from borat.optimizer import ALIG, BORAT

Build = Callable[[nn.Module, RunConfig], Optimizer]


def _plain(kind: Callable[..., Optimizer], *, momentum: str | None = None, **options: Any) -> Build:
    """An optimizer of parameters, with a weight decay; ``momentum`` is what it calls its own."""

    def build(model: nn.Module, config: RunConfig) -> Optimizer:
        given = {} if momentum is None else {momentum: config.momentum}
        return kind(_trainable(model), lr=config.lr, weight_decay=config.weight_decay, **given, **options)

    return build


def _peer(module: str, kind: str, **options: Any) -> Build:
    """The same from a library that may not be installed."""

    def build(model: nn.Module, config: RunConfig) -> Optimizer:
        return _plain(_import_peer(module, kind), **options)(model, config)

    return build


def _import_peer(module: str, kind: str) -> Callable[..., Optimizer]:
    try:
        peer: Callable[..., Optimizer] = getattr(import_module(module), kind)
    except ModuleNotFoundError as error:
        raise ValueError(f"this optimizer needs {error.name}, which is missing: pip install 'borat[peers]'") from error
    return peer


def _sgd(model: nn.Module, config: RunConfig) -> Optimizer:
    return _plain(torch.optim.SGD, momentum="momentum", nesterov=config.momentum > 0.0)(model, config)


def _borat(model: nn.Module, config: RunConfig) -> Optimizer:
    _refuse_weight_decay(config)
    params, constraint = _trainable(model), _ball(config)
    return BORAT(params, config.lr, config.bundle_size, momentum=config.momentum, constraint=constraint)


def _alig(model: nn.Module, config: RunConfig) -> Optimizer:
    _refuse_weight_decay(config)
    return ALIG(_trainable(model), config.lr, momentum=config.momentum, constraint=_ball(config))


def _schedule_free(model: nn.Module, config: RunConfig) -> Optimizer:
    module = "borat.lab.baselines.schedule_free"
    return _peer(module, "ScheduleFree", momentum="momentum", constraint=_ball(config))(model, config)


def _dog(model: nn.Module, config: RunConfig) -> Optimizer:
    kind = _import_peer("borat.lab.baselines.dog", "DoG")
    return kind(model, config.lr, weight_decay=config.weight_decay, constraint=_ball(config))


OPTIMIZERS: dict[str, Build] = {
    "borat": _borat,
    "alig": _alig,
    "sgd": _sgd,
    "adagrad": _plain(torch.optim.Adagrad),
    "adam": _plain(torch.optim.Adam),
    "amsgrad": _plain(torch.optim.Adam, amsgrad=True),
    "adamw": _plain(torch.optim.AdamW),
    "rmsprop": _plain(torch.optim.RMSprop),
    "yogi": _peer("pytorch_optimizer", "Yogi", weight_decouple=False),
    "dfw": _plain(DFW, momentum="momentum"),
    "bpgrad": _plain(BPGrad, momentum="momentum"),
    "l4adam": _plain(L4Adam),
    "l4mom": _plain(L4Mom, momentum="momentum"),
    "sps": _plain(SPS),
    "momo": _peer("borat.lab.baselines.momo", "MoMo", momentum="beta"),
    "momo-adam": _peer("borat.lab.baselines.momo", "MoMoAdam"),
    "prodigy": _peer("borat.lab.baselines.prodigy", "Prodigy"),
    "schedule-free": _schedule_free,
    "dog": _dog,
}

DEFAULT_LR: dict[str, float] = {
    "borat": 0.1,
    "alig": 0.1,
    "sgd": 0.1,
    "adagrad": 0.01,
    "adam": 0.001,
    "amsgrad": 0.001,
    "adamw": 0.001,
    "rmsprop": 0.01,
    "yogi": 0.01,
    "dfw": 0.1,
    "bpgrad": 0.02,
    "l4adam": 0.15,
    "l4mom": 0.15,
    "sps": 1.0,
    "momo": 1.0,
    "momo-adam": 0.01,
    "prodigy": 1.0,
    "schedule-free": 1.0,
    "dog": 1.0,
}
"""What the authors or the libraries advise to begin with."""

NOT_SHARDED = ("momo", "momo-adam", "prodigy", "dog")
"""Their libraries cannot save parameters that are spread over processes, or not even step on them."""


def check_optimizer(config: RunConfig) -> None:
    """Whether there is such an optimizer, and whether it can have this loss."""
    if config.optimizer not in OPTIMIZERS:
        near = difflib.get_close_matches(config.optimizer, OPTIMIZERS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(OPTIMIZERS)}"
        raise ValueError(f"unknown optimizer {config.optimizer!r}; {hint}")
    check_loss_suits(config)


def make_optimizer(model: nn.Module, config: RunConfig) -> Optimizer:
    """The optimizer of a run. Where it knows no constraint, the radius is enforced after each of its steps."""
    check_optimizer(config)
    if config.optimizer in NOT_SHARDED and any(map(sharding.is_sharded, model.parameters())):
        raise ValueError(f"{config.optimizer} cannot train a model that is spread over processes: use ddp, not fsdp")
    optimizer = OPTIMIZERS[config.optimizer](model, config)
    ball = _ball(config)
    if ball is not None and not hasattr(optimizer, "constraint"):
        params = _trainable(model)
        ball(params)
        optimizer.register_step_post_hook(lambda *_: ball(params))
    return optimizer


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _ball(config: RunConfig) -> L2Ball | None:
    return None if config.radius is None else L2Ball(config.radius)


def _refuse_weight_decay(config: RunConfig) -> None:
    if config.weight_decay:
        raise ValueError(f"weight_decay does not apply to {config.optimizer}: use radius, got {config.weight_decay}")
