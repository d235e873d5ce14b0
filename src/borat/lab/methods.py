"""Methods to compare: their names, optimizers and requirements.

A new method is one more entry, see ``docs/add-an-optimizer.md``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Method:
    """An optimizer of the lab."""

    name: str
    """Name in a configuration."""
    label: str
    """Name in tables and figures, as in its paper; ``{bundle_size}`` stands for that of the configuration."""
    lr: float
    """Learning rate that its authors or its library recommend."""
    optimizer: str | Callable[..., Any]
    """A class or a function of the parameters, ``lr`` and the arguments below, or its import path ``module:name``."""
    takes: tuple[str, ...] = ("weight_decay",)
    """Keys of a configuration that are passed as arguments; ``radius`` is passed as a ball named ``constraint``.

    Setting a weight decay raises an error if the method has none. If it takes no radius, the ball is enforced
    after each step.
    """
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments."""
    takes_model: bool = False
    """True if the optimizer takes the model instead of the parameters."""
    losses: tuple[str, ...] = ()
    """Losses that it can minimise; all if empty."""
    averages: bool = False
    """True if its result is an average, at which running statistics must be measured before evaluation."""
    shards: bool = True
    """True if it can train a sharded model: some libraries cannot save its state or take a step."""
    colours: Mapping[str, str] = field(default_factory=dict)
    """Labels with a fixed colour in every figure, which come first in every table."""


_HERE = "borat.lab.baselines"
_MOMENTUM = ("momentum", "weight_decay")
METHODS = {
    method.name: method
    for method in (
        Method("sgd", "SGD", 0.1, f"{_HERE}.optimizers:sgd", _MOMENTUM, colours={"SGD": "grey"}),
        Method("heavy-ball", "Heavy ball", 0.1, "torch.optim:SGD", _MOMENTUM),  # SGD with Polyak's momentum
        Method("alig", "ALI-G", 0.1, "borat:ALIG", ("momentum", "radius"), colours={"ALI-G": "vermilion"}),
        Method(
            *("borat", "BORAT{bundle_size}", 0.1, "borat:BORAT", ("bundle_size", "momentum", "radius")),
            colours={"BORAT3": "blue", "BORAT5": "green"},
        ),
        Method(
            *("free-borat", "FreeBORAT{bundle_size}", 1.0, "borat:FreeBORAT"),
            takes=("bundle_size", "weight_decay", "radius"),
            averages=True,
            colours={"FreeBORAT3": "purple", "FreeBORAT5": "orange"},
        ),
        Method("adagrad", "Adagrad", 0.01, "torch.optim:Adagrad"),
        Method("adam", "Adam", 0.001, "torch.optim:Adam"),
        Method("amsgrad", "AMSGrad", 0.001, "torch.optim:Adam", options={"amsgrad": True}),
        Method("adamw", "AdamW", 0.001, "torch.optim:AdamW"),
        Method("nadamw", "NAdamW", 0.002, f"{_HERE}.optimizers:nadamw"),
        Method("rmsprop", "RMSprop", 0.01, "torch.optim:RMSprop"),
        Method("yogi", "Yogi", 0.01, "pytorch_optimizer:Yogi", options={"weight_decouple": False}),
        # derived for piecewise linear losses; lr is the proximal coefficient
        Method("dfw", "DFW", 0.1, f"{_HERE}.loss_based:DFW", _MOMENTUM, losses=("smooth-hinge", "hinge")),
        Method("bpgrad", "BPGrad", 0.02, f"{_HERE}.loss_based:BPGrad", _MOMENTUM),  # lr is 1 / Lipschitz constant
        Method("l4adam", "L4Adam", 0.15, f"{_HERE}.loss_based:L4Adam"),  # lr is a fraction of the gap
        Method("l4mom", "L4Mom", 0.15, f"{_HERE}.loss_based:L4Mom", _MOMENTUM),
        Method("sps", "SPS_max", 1.0, f"{_HERE}.loss_based:SPS"),
        Method("momo", "MoMo", 1.0, f"{_HERE}.momo:MoMo", _MOMENTUM, shards=False),
        Method("momo-adam", "MoMo-Adam", 0.01, f"{_HERE}.momo:MoMoAdam", shards=False),
        Method("prodigy", "Prodigy", 1.0, "prodigyopt:Prodigy", shards=False),
        Method(
            *("schedule-free", "Schedule-Free", 1.0, f"{_HERE}.schedule_free:ScheduleFree", (*_MOMENTUM, "radius")),
            averages=True,
        ),
        Method(
            *("schedule-free-adamw", "Schedule-Free AdamW", 0.0025, f"{_HERE}.schedule_free:ScheduleFreeAdamW"),
            averages=True,
        ),
        Method(
            *("dog", "DoG", 1.0, f"{_HERE}.dog:DoG", ("weight_decay", "radius")),
            takes_model=True,
            averages=True,
            shards=False,
        ),
    )
}
"""Adam and its relatives have averages of their own and no argument ``momentum``. Weight decay is the coefficient of an
L2 term in the loss, except for AdamW, NAdamW, Schedule-Free AdamW and Prodigy, where it is decoupled from the gradient,
and for MoMo, where it is proximal."""
FIRST_LABELS = {label: colour for method in METHODS.values() for label, colour in method.colours.items()}


def label_of(optimizer: str, bundle_size: int, schedule: str = "constant") -> str:
    """Return the name of an optimizer and its schedule in tables and figures.

    >>> label_of("borat", 3), label_of("sgd", 3, "cosine")
    ('BORAT3', 'SGD, cosine')
    """
    label = METHODS[optimizer].label.format(bundle_size=bundle_size) if optimizer in METHODS else optimizer
    return label if schedule == "constant" else f"{label}, {schedule}"


def label_rank(label: str) -> tuple[int, int, str]:
    """Return a key that sorts the paper's methods first, other bundle sizes of BORAT next, then the rest by name."""
    first = list(FIRST_LABELS)
    if label in first:
        return (first.index(label), 0, label)
    bundle = re.match(r"BORAT(\d+)", label)
    return (len(first), int(bundle[1]), label) if bundle else (len(first) + 1, 0, label.lower())


def sort_labels(labels: Iterable[str]) -> list[str]:
    return sorted(set(labels), key=label_rank)
