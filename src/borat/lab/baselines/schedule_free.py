"""Schedule-Free SGD and AdamW from schedulefree."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import schedulefree  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn

from borat.constraints import L2Ball
from borat.lab.baselines.loss_based import inner_product


class _ExactReturn:
    """Start in training mode; :meth:`train` undoes :meth:`eval` bit for bit, the library only up to rounding."""

    param_groups: list[dict[str, Any]]
    state: dict[Tensor, dict[str, Tensor]]

    def __init__(self, params: list[nn.Parameter], lr: float, **options: float) -> None:
        super().__init__(params, lr=lr, **options)  # type: ignore[call-arg]
        self.param_groups[0]["train_mode"] = True

    @torch.no_grad()
    def eval(self) -> None:
        r"""Move the model to the average :math:`x`."""
        if self.param_groups[0]["train_mode"]:
            for p in self._started():
                self.state[p]["y"] = p.detach().clone()
        super().eval()  # type: ignore[misc]

    @torch.no_grad()
    def train(self) -> None:
        r"""Move the model back to :math:`y`."""
        super().train()  # type: ignore[misc]
        for p in self._started():
            if "y" in self.state[p]:
                p.copy_(self.state[p].pop("y"))

    def _started(self) -> list[Tensor]:
        return [p for p in self.param_groups[0]["params"] if "z" in self.state.get(p, {})]


class ScheduleFree(_ExactReturn, schedulefree.SGDScheduleFree):  # type: ignore[misc]
    r"""Schedule-Free SGD (Defazio, Yang, Mehta, Mishchenko, Khaled and Cutkosky, 2024).

    Gradients are measured at :math:`y = (1 - \beta) z + \beta x`, where :math:`z` takes the steps of SGD and
    :math:`x` is their average, at which the model is evaluated. A ball constrains :math:`z`, so that :math:`x` and
    :math:`y` stay in it as well.

    Args:
        params: parameters.
        lr: the learning rate.
        momentum: :math:`\beta`, between 0 and 1.
        weight_decay: added to the gradient.
        constraint: a ball around zero, or None.
    """

    def __init__(
        self, params: list[nn.Parameter], lr: float, *, momentum: float, weight_decay: float, constraint: L2Ball | None
    ) -> None:
        self.constraint = constraint
        if not 0.0 < momentum < 1.0:
            raise ValueError(f"momentum must be between 0 and 1 for schedule-free, got {momentum}")
        if constraint is not None:
            constraint(params)
        super().__init__(params, lr, momentum=momentum, weight_decay=weight_decay)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        loss: Tensor | None = super().step(closure)
        if self.constraint is not None:
            self._project(self.constraint.radius)
        return loss

    @property
    def step_size(self) -> float | None:
        group = self.param_groups[0]
        return float(group["scheduled_lr"]) if group["k"] else None

    def _project(self, radius: float) -> None:
        r"""Project :math:`z`, and move :math:`y` as if the step of :math:`z` had ended at the projection."""
        group, params = self.param_groups[0], self._started()
        zs = [self.state[p]["z"] for p in params]
        norm = math.sqrt(inner_product(zs, zs))
        if norm <= radius:
            return
        scale = radius / norm
        weight_of_z = group["k"] ** group["r"] * group["lr_max"] ** group["weight_lr_power"] / group["weight_sum"]
        share = 1.0 - group["momentum"] * (1.0 - weight_of_z)
        for p, z in zip(params, zs, strict=True):
            p.add_(z, alpha=(scale - 1.0) * share)
            z.mul_(scale)


class ScheduleFreeAdamW(_ExactReturn, schedulefree.AdamWScheduleFree):  # type: ignore[misc]
    r"""Schedule-Free AdamW: :math:`z` takes the steps of Adam without momentum."""
