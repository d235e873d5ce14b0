"""Every optimizer of ours, at several bundle sizes, behind one way to make it: what the contract is tested over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from borat import BORAT, FreeBORAT


@dataclass(frozen=True)
class Flavour:
    """An optimizer and a bundle size; its steps are those of the host, or those that a GPU would take."""

    cls: Any
    size: int
    capturable: bool | None = None

    def __call__(self, params: Any, lr: Any = 0.5, **options: Any) -> Any:
        """The optimizer. FreeBORAT has no use for an ``lr`` of BORAT's, nor for a momentum."""
        options["capturable"] = self.capturable
        if self.cls is FreeBORAT:
            return FreeBORAT(params, self.size, **{k: v for k, v in options.items() if k != "momentum"})
        return BORAT(params, lr, self.size, **options)

    @property
    def calls(self) -> int:
        """How many batches an update takes."""
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
