"""BPGrad, the gradient method of branch and pruning."""

from __future__ import annotations

import math

from torch.optim.optimizer import ParamsT

from borat.lab.baselines.loss_based import LossBased, inner_product, ratio


class BPGrad(LossBased):
    r"""BPGrad (Zhang, Wu and Wang, CVPR 2018), in the form in which its authors use it.

    No point that is nearer than :math:`f(w) / L` can be a minimum with value zero if :math:`f` has the Lipschitz
    constant :math:`L`. So one goes as far, along the gradient :math:`g`:

    .. math::
        v &\leftarrow \mu v - \frac{f(w)}{L} \frac{g}{\|g\|} \\
        w &\leftarrow w + v

    This is the practical solver of the paper with one sample in each branch and a lower bound of zero
    (:math:`\rho = 0`), as in the experiments of Berrada et al. (2019, 2020) and of the BORAT paper. Their code
    does not move at all without momentum; this one does.

    Args:
        params: parameters or parameter groups.
        lr: :math:`1 / L`. The authors' code for CIFAR-10 has :math:`L = 50`.
        momentum: :math:`\mu`, 0.9 as in the authors' code.
        weight_decay: :math:`\lambda`; both :math:`f` and :math:`g` have the term :math:`\frac{\lambda}{2} \|w\|^2`.
    """

    buffers = ("velocity",)

    def __init__(self, params: ParamsT, lr: float = 0.02, *, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        super().__init__(params, lr, weight_decay, momentum=momentum)

    def _update(self, loss: float) -> None:
        value, gradients = self._regularised(loss)
        factor = ratio(value, math.sqrt(inner_product(gradients, gradients)))
        for (group, p, _), gradient in zip(self._parameters(), gradients, strict=True):
            velocity = self._buffers_of(p)["velocity"]
            velocity.mul_(group["momentum"]).add_(gradient, alpha=-group["lr"] * factor)
            p.add_(velocity)
        self.step_size = float(self.param_groups[0]["lr"]) * factor
