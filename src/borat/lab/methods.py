"""The methods that are compared, in one table: what each is called, how it is made, and what it needs.

A method of one's own is one entry more, see ``docs/add-an-optimizer.md``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

DECAY = {"weight_decay": "weight_decay"}
MOMENTUM = {"momentum": "momentum"}
BALL = {"radius": "constraint"}


@dataclass(frozen=True)
class Method:
    """An optimizer of the lab."""

    name: str
    """In a configuration."""
    label: str
    """As its paper calls it, in tables and figures. ``{bundle_size}`` stands for that of the configuration."""
    lr: float
    """Default of its authors or its library."""
    lr_is: str
    """Meaning of the learning rate."""
    optimizer: str | Callable[..., Any]
    """A class or a function that takes the parameters, ``lr`` and what is listed below; here as ``module:name``."""
    takes: Mapping[str, str] = field(default_factory=lambda: DECAY)
    """Keys of a configuration, and the arguments that they are passed as; a radius is passed as a ball.

    A method that takes no weight decay refuses one. For one that takes no radius, it is enforced after each step.
    """
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments."""
    takes_model: bool = False
    """It wants the model in place of the parameters."""
    losses: tuple[str, ...] = ()
    """Those that it can minimise; all if empty."""
    averages: bool = False
    """Its result is an average, so that running statistics have to be measured there before it is evaluated."""
    shards: bool = True
    """True if it can train a sharded model: some libraries cannot save or even step on one."""
    colours: Mapping[str, str] = field(default_factory=dict)
    """The colours of labels that look the same in every figure and come first in every table."""


_HERE = "borat.lab.baselines"
METHODS = {
    method.name: method
    for method in (
        Method(
            *("sgd", "SGD", 0.1, "step size", f"{_HERE}.optimizers:sgd"),
            takes=MOMENTUM | DECAY,
            colours={"SGD": "grey"},
        ),
        Method(
            *("alig", "ALI-G", 0.1, "largest step size", "borat:ALIG"),
            takes=MOMENTUM | BALL,
            colours={"ALI-G": "vermilion"},
        ),
        Method(
            *("borat", "BORAT{bundle_size}", 0.1, "largest step size", "borat:BORAT"),
            takes={"bundle_size": "bundle_size"} | MOMENTUM | BALL,
            colours={"BORAT3": "blue", "BORAT5": "green"},
        ),
        Method(
            *("free-borat", "FreeBORAT{bundle_size}", 1.0, "factor of the step, to be left at 1", "borat:FreeBORAT"),
            takes={"bundle_size": "bundle_size"} | DECAY | BALL,
            averages=True,
            colours={"FreeBORAT3": "purple", "FreeBORAT5": "orange"},
        ),
        Method("adagrad", "Adagrad", 0.01, "step size", "torch.optim:Adagrad"),
        Method("adam", "Adam", 0.001, "step size", "torch.optim:Adam"),
        Method("amsgrad", "AMSGrad", 0.001, "step size", "torch.optim:Adam", options={"amsgrad": True}),
        Method("adamw", "AdamW", 0.001, "step size", "torch.optim:AdamW"),
        Method("nadamw", "NAdamW", 0.002, "step size", f"{_HERE}.optimizers:nadamw"),
        Method("rmsprop", "RMSprop", 0.01, "step size", "torch.optim:RMSprop"),
        Method("yogi", "Yogi", 0.01, "step size", "pytorch_optimizer:Yogi", options={"weight_decouple": False}),
        Method(
            *("dfw", "DFW", 0.1, "proximal coefficient", f"{_HERE}.dfw:DFW"),
            takes=MOMENTUM | DECAY,
            losses=("smooth-hinge", "hinge"),  # it is derived for piecewise linear ones
        ),
        Method("bpgrad", "BPGrad", 0.02, "1 / Lipschitz constant", f"{_HERE}.bpgrad:BPGrad", MOMENTUM | DECAY),
        Method("l4adam", "L4Adam", 0.15, "fraction of the gap", f"{_HERE}.l4:L4Adam"),
        Method("l4mom", "L4Mom", 0.15, "fraction of the gap", f"{_HERE}.l4:L4Mom", MOMENTUM | DECAY),
        Method("sps", "SPS_max", 1.0, "largest step size", f"{_HERE}.sps:SPS"),
        Method(
            *("momo", "MoMo", 1.0, "largest step size", f"{_HERE}.momo:MoMo"),
            takes={"momentum": "beta"} | DECAY,
            shards=False,
        ),
        Method("momo-adam", "MoMo-Adam", 0.01, "largest step size", f"{_HERE}.momo:MoMoAdam", shards=False),
        Method("prodigy", "Prodigy", 1.0, "factor of the estimate", f"{_HERE}.prodigy:Prodigy", shards=False),
        Method(
            *("schedule-free", "Schedule-Free", 1.0, "step size", f"{_HERE}.schedule_free:ScheduleFree"),
            takes=MOMENTUM | DECAY | BALL,
            averages=True,
        ),
        Method(
            *(
                "schedule-free-adamw",
                "Schedule-Free AdamW",
                0.0025,
                "step size",
                f"{_HERE}.schedule_free:ScheduleFreeAdamW",
            ),
            averages=True,
        ),
        Method(
            *("dog", "DoG", 1.0, "factor of the estimate", f"{_HERE}.dog:DoG"),
            takes=DECAY | BALL,
            takes_model=True,
            averages=True,
            shards=False,
        ),
    )
}
"""Adam and its relatives keep averages of their own, so that they take no momentum. Weight decay is the coefficient of
an L2 term in the loss, but for AdamW, NAdamW, Schedule-Free AdamW and Prodigy, where it is decoupled from the gradient,
and for MoMo, where it is proximal."""

FIRST_LABELS = {label: colour for method in METHODS.values() for label, colour in method.colours.items()}


def label_of(optimizer: str, bundle_size: int, schedule: str = "constant") -> str:
    """An optimizer and its schedule as tables and figures call them.

    >>> label_of("borat", 3), label_of("sgd", 3, "cosine")
    ('BORAT3', 'SGD, cosine')
    """
    label = METHODS[optimizer].label.format(bundle_size=bundle_size) if optimizer in METHODS else optimizer
    return label if schedule == "constant" else f"{label}, {schedule}"


def label_rank(label: str) -> tuple[int, int, str]:
    """The paper's methods first, other bundle sizes of BORAT next, then the rest by name."""
    first = list(FIRST_LABELS)
    if label in first:
        return (first.index(label), 0, label)
    bundle = re.match(r"BORAT(\d+)", label)
    return (len(first), int(bundle[1]), label) if bundle else (len(first) + 1, 0, label.lower())


def sort_labels(labels: Iterable[str]) -> list[str]:
    return sorted(set(labels), key=label_rank)
