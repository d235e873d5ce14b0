"""Deep Frank-Wolfe."""

from __future__ import annotations

from torch.optim.optimizer import ParamsT

from borat.lab.baselines.loss_based import LossBased, inner_product, ratio


class DFW(LossBased):
    r"""Deep Frank-Wolfe (Berrada, Zisserman and Kumar, ICLR 2019, Algorithm 2), for piecewise linear losses.

    One step of Frank-Wolfe on the dual of a proximal problem with a linear SVM, whose optimal size has a closed form.
    With the gradient :math:`\delta` of the loss :math:`\ell` and that of the regularisation, :math:`r = \lambda w`:

    .. math::
        \gamma &= \Big[ \frac{\ell - \eta \langle \delta, r \rangle}{\eta \|\delta\|^2} \Big]_0^1 \\
        z &\leftarrow \mu z - \eta \gamma (\delta + r) \\
        w &\leftarrow w - \eta (r + \gamma \delta) + \mu z

    Without weight decay this is ALI-G. The authors' code adds 1e-5 to the denominator; this one does not.

    Args:
        params: parameters or parameter groups.
        lr: the proximal coefficient :math:`\eta`.
        momentum: :math:`\mu`, as in the paper.
        weight_decay: :math:`\lambda`.
    """

    buffers = ("velocity",)

    def __init__(self, params: ParamsT, lr: float = 0.1, *, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        super().__init__(params, lr, weight_decay, momentum=momentum)

    def _update(self, loss: float) -> None:
        gamma = self._optimal_share(loss)
        for group, p, gradient in self._parameters():
            lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
            velocity = self._buffers_of(p)["velocity"]
            velocity.mul_(momentum).add_(gradient, alpha=-lr * gamma).add_(p, alpha=-lr * gamma * decay)
            p.mul_(1.0 - lr * decay).add_(gradient, alpha=-lr * gamma).add_(velocity, alpha=momentum)
        self.step_size = float(self.param_groups[0]["lr"]) * gamma

    def _optimal_share(self, loss: float) -> float:
        r"""The share :math:`\gamma` of the whole way."""
        numerator, denominator = loss, 0.0
        for group, p, gradient in self._parameters():
            lr, decay = float(group["lr"]), group["weight_decay"]
            numerator -= lr * decay * inner_product([gradient], [p]) if decay else 0.0
            denominator += lr * inner_product([gradient], [gradient])
        return min(max(ratio(numerator, denominator), 0.0), 1.0)
