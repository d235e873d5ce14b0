"""Prodigy from prodigyopt."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import prodigyopt  # type: ignore[import-untyped]


class Prodigy(prodigyopt.Prodigy):  # type: ignore[misc]
    """Prodigy (Mishchenko and Defazio, 2024): Adam with the estimated distance to the solution as learning rate."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints a remark about weight decay
            super().__init__(*arguments, **options)

    @property
    def step_size(self) -> float | None:
        """Estimated distance times ``lr``."""
        group = self.param_groups[0]
        return float(group["d"] * group["lr"]) if group["k"] else None
