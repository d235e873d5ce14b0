"""MoMo and MoMo-Adam from momo-opt, with a complete state dict and the step size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import momo  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn

from borat.lab.baselines.loss_based import Loss


def _in_group(key: str) -> property:
    """Return a property that is stored in the first parameter group, and hence in the state dict."""
    return property(
        lambda optimizer: optimizer.param_groups[0][key],
        lambda optimizer, value: optimizer.param_groups[0].update({key: value}),
    )


class _Checkpointable:
    r"""Save the average loss and the number of steps, and expose the step size; the library does neither.

    The step size follows from the library's averages of the losses (:math:`\bar f`), of the gradients (:math:`d`) and
    of their inner products with the parameters (:math:`\gamma`):

    .. math::
        \tau = \min \Big\{ \frac{\eta}{\rho}, \;
            \frac{[(1 + \eta \lambda)(\bar f - \rho f_* - \gamma) + \langle d, w \rangle]_+}{\|d\|_{D^{-1}}^2} \Big\}
    """

    _number_steps = _in_group("number_steps")
    loss_avg = _in_group("loss_avg")
    step_size: float | None = None
    param_groups: list[dict[str, Any]]
    state: dict[Any, Any]
    lb: float

    def step(self, closure: Callable[[], Loss] | None = None, loss: Loss | None = None) -> Loss:
        group = self.param_groups[0]
        before = [p.detach().clone() for p in group["params"]]
        result: Loss = super().step(closure, loss)  # type: ignore[misc]
        states = [self.state[p] for p in group["params"]]
        for w, state in zip(before, states, strict=True):  # created in float32, but loaded in the parameter's dtype
            state["grad_dot_w"] = state["grad_dot_w"].to(w.dtype)
        dot = sum(torch.sum(w * state["grad_avg"]) for w, state in zip(before, states, strict=True))
        norm = sum(torch.sum(state["grad_avg"] * self._direction(state)) for state in states)
        gamma = sum(state["grad_dot_w"] for state in states)
        shrink, rho = 1.0 + group["lr"] * group["weight_decay"], self._bias_correction()
        excess = shrink * (self.loss_avg - rho * self.lb) + dot - shrink * gamma
        self.step_size = min(float(group["lr"]) / rho, float(max(excess, 0.0) / norm))
        return result

    def _direction(self, state: dict[str, Tensor]) -> Tensor:
        return state["grad_avg"]

    def _bias_correction(self) -> float:
        return 1.0


class MoMo(_Checkpointable, momo.Momo):  # type: ignore[misc]
    """Momentum models (Schaipp, Ohana, Eickenberg, Defazio and Gower, 2024) on SGD with momentum."""

    def __init__(self, params: list[nn.Parameter], lr: float, *, momentum: float, weight_decay: float) -> None:
        super().__init__(params, lr, beta=momentum, weight_decay=weight_decay)


class MoMoAdam(_Checkpointable, momo.MomoAdam):  # type: ignore[misc]
    """Momentum models (Schaipp, Ohana, Eickenberg, Defazio and Gower, 2024) on Adam."""

    def _direction(self, state: dict[str, Tensor]) -> Tensor:
        group = self.param_groups[0]
        correction = 1.0 - group["betas"][1] ** self._number_steps
        scale: Tensor = (state["grad_avg_sq"] / correction).sqrt() + group["eps"]
        return state["grad_avg"] / scale

    def _bias_correction(self) -> float:
        return float(1.0 - self.param_groups[0]["betas"][0] ** self._number_steps)
