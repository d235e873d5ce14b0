"""The stochastic Polyak step size."""

from __future__ import annotations

import math

from torch.optim.optimizer import ParamsT

from borat._checks import check_positive, is_number
from borat.lab.baselines.loss_based import LossBased, inner_product, ratio


class SPS(LossBased):
    r"""The stochastic Polyak step size with a bound, SPS_max (Loizou, Vaswani, Laradji and Lacoste-Julien, 2021).

    .. math::
        \gamma_t = \min \Big\{ \frac{\ell(w_t)}{c \, \|g_t\|^2}, \; \gamma_b, \; \tau \gamma_{t-1} \Big\}, \qquad
        w_{t+1} = w_t - \gamma_t g_t

    The third term is how the paper smooths the step sizes of deep networks, with :math:`\tau = 2^{b/n}` for batches of
    :math:`b` out of :math:`n` examples, so that they may double in each epoch; by default there is none. A batch
    without a loss makes no step, and is forgotten.

    Args:
        params: parameters or parameter groups.
        lr: the bound :math:`\gamma_b`.
        c: 0.5 as in the paper's theory for convex losses; its deep networks have 0.2.
        growth: :math:`\tau`, more than 1.
        weight_decay: :math:`\lambda`; :math:`\ell` and :math:`g` have the term :math:`\frac{\lambda}{2} \|w\|^2`.
    """

    def __init__(
        self, params: ParamsT, lr: float = 1.0, *, c: float = 0.5, growth: float = math.inf, weight_decay: float = 0.0
    ) -> None:
        check_positive("c", c)
        if not is_number(growth) or growth <= 1.0:
            raise ValueError(f"growth must be a number of more than 1, got {growth!r}")
        super().__init__(params, lr, weight_decay, c=c, growth=growth, last_step_size=math.inf)

    def _update(self, loss: float) -> None:
        value, gradients = self._regularised(loss)
        first = self.param_groups[0]
        polyak = max(ratio(value, first["c"] * inner_product(gradients, gradients)), 0.0)
        limit = min(polyak, first["growth"] * first["last_step_size"])
        for (group, p, _), gradient in zip(self._parameters(), gradients, strict=True):
            p.add_(gradient, alpha=-min(limit, float(group["lr"])))
        self.step_size = min(limit, float(first["lr"]))
        if self.step_size:
            first["last_step_size"] = self.step_size
