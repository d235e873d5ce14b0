"""Optimizers whose step size depends on the loss of the batch: DFW, BPGrad and SPS, and their base class."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from borat._checks import check_momentum, is_number
from borat._optim.base import check_loss
from borat._optim.checks import check_lr
from borat._state import sharding

Loss = Tensor | float


class LossBased(Optimizer):
    """Base of optimizers whose step needs the loss of the batch beside its gradients.

    Numbers are kept in the parameter groups and tensors in the state, so that a state dict holds everything.
    """

    buffers: tuple[str, ...] = ()
    """Names of the tensors that are kept for each parameter; they start at zero."""

    step_size: float | None = None
    """Factor of the gradient, or of the direction in its place, in the last update; None before the first."""

    def __init__(self, params: ParamsT, lr: float, weight_decay: float, **defaults: Any) -> None:
        check_lr(lr, 1)
        if not is_number(weight_decay) or weight_decay < 0.0:
            raise ValueError(f"weight_decay must be a number of at least 0, got {weight_decay!r}")
        if "momentum" in defaults:
            check_momentum(defaults["momentum"])
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **defaults})

    @torch.no_grad()
    def step(self, closure: Callable[[], Loss] | None = None, *, loss: Loss | None = None) -> Loss | None:  # type: ignore[override]
        """Update the parameters.

        Args:
            closure: returns the loss, and may compute it and its gradients anew.
            loss: the loss whose gradients are in the parameters' ``grad``.
        """
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if loss is None:
            self._allocate()
            return None
        check_loss(loss)
        self._update(float(loss))
        return loss

    @abstractmethod
    def _update(self, loss: float) -> None: ...

    def _allocate(self) -> None:
        """Create the state without a batch: tools that load checkpoints call step() with learning rates of zero."""
        if any(group["lr"] for group in self.param_groups):
            raise ValueError("step needs the loss of the batch: call step(loss=loss) or step(lambda: loss)")
        for _, p, _ in self._parameters():
            self._buffers_of(p)

    def _parameters(self) -> Iterator[tuple[dict[str, Any], Tensor, Tensor]]:
        """Yield the group, the parameter and the gradient of each parameter with a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    yield group, p, p.grad

    def _buffers_of(self, p: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[p]
        for name in self.buffers:
            if name not in state:
                state[name] = torch.zeros_like(p)
        return state

    def _regularised(self, loss: float) -> tuple[float, list[Tensor]]:
        r"""Return the value and the gradient of :math:`\ell(w) + \frac{\lambda}{2} \|w\|^2`."""
        gradients = []
        for group, p, gradient in self._parameters():
            decay = group["weight_decay"]
            gradients.append(gradient.add(p, alpha=decay) if decay else gradient)
            loss += 0.5 * decay * inner_product([p], [p]) if decay else 0.0
        return loss, gradients


def inner_product(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> float:
    """Return the inner product of all tensors as one vector; they may be sharded."""
    products = [
        sharding.over_mesh(torch.dot(sharding.local(x).flatten(), sharding.local(y).flatten()), x)
        for x, y in zip(xs, ys, strict=True)
    ]
    return torch.stack(products).sum().item() if products else 0.0


def ratio(numerator: float, denominator: float) -> float:
    """Return the quotient, or zero if the denominator is zero: no gradient, no step."""
    return numerator / denominator if denominator else 0.0


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
        r"""Return the share :math:`\gamma` of the full step."""
        numerator, denominator = loss, 0.0
        for group, p, gradient in self._parameters():
            lr, decay = float(group["lr"]), group["weight_decay"]
            numerator -= lr * decay * inner_product([gradient], [p]) if decay else 0.0
            denominator += lr * inner_product([gradient], [gradient])
        return min(max(ratio(numerator, denominator), 0.0), 1.0)


class BPGrad(LossBased):
    r"""BPGrad (Zhang, Wu and Wang, CVPR 2018), in the form in which its authors use it.

    If :math:`f` has the Lipschitz constant :math:`L`, no point nearer than :math:`f(w) / L` can be a minimum with value
    zero. So a step goes that far along the gradient :math:`g`:

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


class SPS(LossBased):
    r"""The stochastic Polyak step size with a bound, SPS_max (Loizou, Vaswani, Laradji and Lacoste-Julien, 2021).

    .. math::
        w \leftarrow w - \min \Big\{ \frac{\ell(w)}{c \, \|g\|^2}, \; \gamma_b \Big\} \, g

    with :math:`c = \frac12`, as in the paper's theory for convex losses.

    Args:
        params: parameters or parameter groups.
        lr: the bound :math:`\gamma_b`.
        weight_decay: :math:`\lambda`; :math:`\ell` and :math:`g` have the term :math:`\frac{\lambda}{2} \|w\|^2`.
    """

    def __init__(self, params: ParamsT, lr: float = 1.0, *, weight_decay: float = 0.0) -> None:
        super().__init__(params, lr, weight_decay)

    def _update(self, loss: float) -> None:
        value, gradients = self._regularised(loss)
        polyak = max(ratio(value, 0.5 * inner_product(gradients, gradients)), 0.0)
        for (group, p, _), gradient in zip(self._parameters(), gradients, strict=True):
            p.add_(gradient, alpha=-min(polyak, float(group["lr"])))
        self.step_size = min(polyak, float(self.param_groups[0]["lr"]))
