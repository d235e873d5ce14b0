"""L4, the linearised loss-based learning rate, on top of Adam and of momentum."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from borat._checks import check_positive
from borat.lab.baselines.loss_based import LossBased, inner_product


class L4(LossBased):
    r"""L4 (Rolínek and Martius, NeurIPS 2018): go where the linearised loss falls to what can be reached.

    .. math::
        w \leftarrow w - \alpha \frac{\ell - \gamma L_{\min}}{\langle g, v \rangle + \epsilon} \, v

    where :math:`g` is the average of the gradients with momentum and bias correction, :math:`v` the direction of the
    underlying method, and :math:`L_{\min}` an estimate of the smallest loss: :math:`\gamma_0` times the first loss at
    first, then the smallest one seen so far, which grows by :math:`1 + 1/\tau` after each step. The constants are those
    of the paper and of the authors' code.

    Args:
        params: parameters or parameter groups.
        lr: the fraction :math:`\alpha`.
        momentum: the decay of the averages of gradients.
        weight_decay: :math:`\lambda`; the loss and its gradient have the term :math:`\frac{\lambda}{2} \|w\|^2`.
        gamma: the share of :math:`L_{\min}` that is taken to be reachable.
        gamma_0: the share of the first loss.
        tau: the time scale in which :math:`L_{\min}` is forgotten.
        eps: :math:`\epsilon`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.15,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        gamma: float = 0.9,
        gamma_0: float = 0.75,
        tau: float = 1000.0,
        eps: float = 1e-12,
        **defaults: Any,
    ) -> None:
        for name, value in (("gamma", gamma), ("gamma_0", gamma_0), ("tau", tau), ("eps", eps)):
            check_positive(name, value)
        constants = {"gamma": gamma, "gamma_0": gamma_0, "tau": tau, "eps": eps}
        memory = {"steps": 0, "smallest_loss": 0.0}
        super().__init__(params, lr, weight_decay, momentum=momentum, **constants, **memory, **defaults)

    def _update(self, loss: float) -> None:
        value, gradients = self._regularised(loss)
        first = self.param_groups[0]
        first["steps"] += 1
        averages, directions = [], []
        for (group, p, _), gradient in zip(self._parameters(), gradients, strict=True):
            average, direction = self._average_and_direction(group, self._buffers_of(p), gradient, first["steps"])
            averages.append(average)
            directions.append(direction)
        is_first = first["steps"] == 1
        smallest = first["gamma_0"] * value if is_first else min(first["smallest_loss"], value)
        factor = (value - first["gamma"] * smallest) / (inner_product(averages, directions) + first["eps"])
        first["smallest_loss"] = (1.0 + 1.0 / first["tau"]) * smallest
        for (group, p, _), direction in zip(self._parameters(), directions, strict=True):
            p.add_(direction, alpha=-group["lr"] * factor)
        self.step_size = float(first["lr"]) * factor

    @abstractmethod
    def _average_and_direction(
        self, group: dict[str, Any], buffers: dict[str, Tensor], gradient: Tensor, steps: int
    ) -> tuple[Tensor, Tensor]: ...


class L4Mom(L4):
    """L4 along the average of the gradients; see :class:`L4`."""

    buffers = ("average",)

    def _average_and_direction(
        self, group: dict[str, Any], buffers: dict[str, Tensor], gradient: Tensor, steps: int
    ) -> tuple[Tensor, Tensor]:
        average = _corrected_average(buffers["average"], gradient, group["momentum"], steps)
        return average, average


class L4Adam(L4):
    r"""L4 along the direction of Adam; see :class:`L4`.

    Args:
        params: see :class:`L4`.
        beta2: the decay of the averages of squared gradients.
        adam_eps: added to their square roots; 1e-4 as in the authors' code.
        options: see :class:`L4`.
    """

    buffers = ("average", "average_square")

    def __init__(
        self, params: ParamsT, lr: float = 0.15, *, beta2: float = 0.999, adam_eps: float = 1e-4, **options: Any
    ) -> None:
        super().__init__(params, lr, beta2=beta2, adam_eps=adam_eps, **options)

    def _average_and_direction(
        self, group: dict[str, Any], buffers: dict[str, Tensor], gradient: Tensor, steps: int
    ) -> tuple[Tensor, Tensor]:
        average = _corrected_average(buffers["average"], gradient, group["momentum"], steps)
        square = _corrected_average(buffers["average_square"], gradient.square(), group["beta2"], steps)
        return average, average / (square.sqrt_() + group["adam_eps"])


def _corrected_average(average: Tensor, new: Tensor, decay: float, steps: int) -> Tensor:
    """Add to a moving average that started at zero, and take that bias out."""
    return average.lerp_(new, 1.0 - decay) / (1.0 - decay**steps)
