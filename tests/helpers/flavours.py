"""The cases of the contract tests: every optimizer, at several bundle sizes, with each of its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from borat import ALIG, BORAT, FreeBORAT
from borat.constraints import L2Ball


@dataclass(frozen=True)
class Flavour:
    """An optimizer with a bundle size, with steps on the host or as on a GPU."""

    cls: Any
    size: int
    capturable: bool | None = None

    def __call__(self, params: Any, lr: Any = 0.5, **options: Any) -> Any:
        """Return the optimizer. FreeBORAT ignores BORAT's ``lr`` and ``momentum``."""
        options["capturable"] = self.capturable
        if self.cls is FreeBORAT:
            return FreeBORAT(params, self.size, **{k: v for k, v in options.items() if k != "momentum"})
        return BORAT(params, lr, self.size, **options)

    @property
    def calls(self) -> int:
        """Number of batches per update."""
        return 1 if self.cls is FreeBORAT else max(self.size - 1, 1)

    def __str__(self) -> str:
        return f"{self.cls.__name__}{self.size}{' on the device' if self.capturable else ''}"


FLAVOURS = [
    *(Flavour(BORAT, n) for n in (1, 2, 3, 5, 10)),
    *(Flavour(FreeBORAT, n) for n in (2, 3, 5)),
    *(Flavour(BORAT, n, capturable=True) for n in (2, 3)),
    Flavour(FreeBORAT, 3, capturable=True),
]

over_flavours = pytest.mark.parametrize("make", FLAVOURS, ids=str)


_OF_BOTH: dict[str, dict[str, Any]] = {
    "tensor lr": {"lr": torch.tensor(0.5)},
    "lower bound": {"lr": 0.5, "lower_bound": -0.05},
    "constraint": {"lr": 0.5, "constraint": L2Ball(1.5)},
    "on the device": {"lr": 0.5, "capturable": True},
}
OPTIONS: dict[type, dict[str, dict[str, Any]]] = {
    ALIG: {
        "default": {},
        "no momentum": {"lr": 0.5, "momentum": 0.0},
        "no cap": {"lr": None, "momentum": 0.0},
        "no cap, momentum": {"lr": None, "momentum": 0.9},
        **_OF_BOTH,
    },
    BORAT: {
        "default": {},
        **{
            f"N={n}, momentum={momentum}": {"bundle_size": n, "momentum": momentum, "lr": 0.5}
            for n in (1, 2, 3, 5, 10)
            for momentum in (0.0, 0.9)
        },
        "same batch": {"bundle_size": 4, "lr": 0.5, "same_batch": True},
        **_OF_BOTH,
    },
    FreeBORAT: {
        **{f"N={n}": {"bundle_size": n} for n in (2, 3, 5)},
        "aim": {"aim": 1.0},
        "betas": {"betas": (0.8, 0.9), "eps": 1e-6},
        "weight decay": {"weight_decay": 1e-3},
        **_OF_BOTH,
    },
}
"""Options of each optimizer, by the name of the variant."""


def has_cap(options: dict[str, Any]) -> bool:
    return options.get("lr", 0.1) is not None


def over_options(
    keep: Callable[[dict[str, Any]], bool] = lambda options: True, of: tuple[type, ...] = tuple(OPTIONS)
) -> Any:
    """Parametrise a test by every optimizer with each of its options."""
    cases = [
        pytest.param(cls, options, id=f"{cls.__name__}: {name}")
        for cls in of
        for name, options in OPTIONS[cls].items()
        if keep(options)
    ]
    return pytest.mark.parametrize(("cls", "options"), cases)


over_classes = pytest.mark.parametrize("cls", OPTIONS, ids=lambda cls: cls.__name__)
