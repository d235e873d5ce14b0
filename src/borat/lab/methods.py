"""The methods that are compared: what they are called, and in which order they come."""

from __future__ import annotations

import re
from collections.abc import Iterable

METHODS = {
    "alig": "ALI-G",
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "adam": "Adam",
    "amsgrad": "AMSGrad",
    "adamw": "AdamW",
    "rmsprop": "RMSprop",
    "yogi": "Yogi",
    "dfw": "DFW",
    "bpgrad": "BPGrad",
    "l4adam": "L4Adam",
    "l4mom": "L4Mom",
    "sps": "SPS_max",
    "momo": "MoMo",
    "momo-adam": "MoMo-Adam",
    "prodigy": "Prodigy",
    "schedule-free": "Schedule-Free",
    "dog": "DoG",
}
"""Optimizers as their papers call them; BORAT's name has its bundle size."""

FIRST_METHODS = ("SGD", "ALI-G", "BORAT3", "BORAT5")


def method_rank(method: str) -> tuple[int, int, str]:
    """The paper's methods first, other bundle sizes of BORAT next, then the rest by name."""
    if method in FIRST_METHODS:
        return (FIRST_METHODS.index(method), 0, method)
    bundle = re.match(r"BORAT(\d+)", method)
    return (len(FIRST_METHODS), int(bundle[1]), method) if bundle else (len(FIRST_METHODS) + 1, 0, method.lower())


def sort_methods(methods: Iterable[str]) -> list[str]:
    return sorted(set(methods), key=method_rank)
