"""L4, the linearised loss-based learning rate, with the directions of momentum and of Adam."""

from __future__ import annotations

from torch import Tensor
from torch.optim.optimizer import ParamsT

from borat.lab.baselines.loss_based import LossBased, inner_product

REACHABLE = 0.9
r"""Share :math:`\gamma` of the smallest loss that is taken to be reachable."""
FIRST_REACHABLE = 0.75
"""Estimate of the smallest loss at the first step, as a share of the first loss."""
MEMORY = 1000.0
r"""Time scale :math:`\tau` in which the smallest loss is forgotten."""
EPS = 1e-12
BETA2, ADAM_EPS = 0.999, 1e-4
"""Constants of Adam as in the authors' code."""


class L4Mom(LossBased):
    r"""L4 (Rolínek and Martius, NeurIPS 2018): step to where the linearised loss reaches the smallest attainable one.

    .. math::
        w \leftarrow w - \alpha \frac{\ell - \gamma L_{\min}}{\langle g, v \rangle + \epsilon} \, v

    where :math:`g` is the average of the gradients with momentum and bias correction, :math:`v` the direction of the
    underlying method, here :math:`g` itself, and :math:`L_{\min}` an estimate of the smallest loss: 0.75 times the
    first loss at first, then the smallest one so far, which grows by :math:`1 + 1/\tau` after each step. The constants
    are those of the paper and of the authors' code.

    Args:
        params: parameters or parameter groups.
        lr: the fraction :math:`\alpha`.
        momentum: decay of the averages of gradients.
        weight_decay: :math:`\lambda`; the loss and its gradient have the term :math:`\frac{\lambda}{2} \|w\|^2`.
    """

    buffers: tuple[str, ...] = ("average",)

    def __init__(self, params: ParamsT, lr: float = 0.15, *, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        super().__init__(params, lr, weight_decay, momentum=momentum, steps=0, smallest_loss=0.0)

    def _update(self, loss: float) -> None:
        value, gradients = self._regularised(loss)
        first = self.param_groups[0]
        first["steps"] += 1
        averages, directions = [], []
        for (group, p, _), gradient in zip(self._parameters(), gradients, strict=True):
            averages.append(self._average(p, "average", gradient, group["momentum"]))
            directions.append(self._direction(p, gradient, averages[-1]))
        smallest = FIRST_REACHABLE * value if first["steps"] == 1 else min(first["smallest_loss"], value)
        factor = (value - REACHABLE * smallest) / (inner_product(averages, directions) + EPS)
        first["smallest_loss"] = (1.0 + 1.0 / MEMORY) * smallest
        for (group, p, _), direction in zip(self._parameters(), directions, strict=True):
            p.add_(direction, alpha=-group["lr"] * factor)
        self.step_size = float(first["lr"]) * factor

    def _direction(self, p: Tensor, gradient: Tensor, average: Tensor) -> Tensor:
        return average

    def _average(self, p: Tensor, name: str, new: Tensor, decay: float) -> Tensor:
        """Update a moving average that started at zero, and return it without that bias."""
        average, steps = self._buffers_of(p)[name], int(self.param_groups[0]["steps"])
        return average.lerp_(new, 1.0 - decay) / (1.0 - decay**steps)


class L4Adam(L4Mom):
    """L4 along the direction of Adam; see :class:`L4Mom`."""

    buffers = ("average", "average_square")

    def _direction(self, p: Tensor, gradient: Tensor, average: Tensor) -> Tensor:
        square = self._average(p, "average_square", gradient.square(), BETA2)
        return average / (square.sqrt_() + ADAM_EPS)
