"""Optimizers whose step size depends on the loss of the batch: DFW, BPGrad, SPS and L4, and their base class."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from borat._checks import check_momentum, check_nonnegative
from borat._optim.base import check_loss
from borat._optim.checks import check_lr
from borat._state import sharding

Loss = Tensor | float

REACHABLE = 0.9
r"""L4's fraction :math:`\gamma` of the smallest loss so far that counts as reachable."""
FIRST_REACHABLE = 0.75
"""Initial estimate of the smallest loss, as a fraction of the first loss."""
MEMORY = 1000.0
r"""Time constant :math:`\tau` of the decay of the smallest loss."""
L4_EPS = 1e-12
BETA2, ADAM_EPS = 0.999, 1e-4
"""Adam's constants in the L4 authors' code."""


class LossBased(Optimizer):
    """Base class of optimizers whose step needs the loss of the batch as well as its gradients.

    Numbers are stored in the parameter groups and tensors in the state, so that the state dict is complete.
    """

    buffers: tuple[str, ...] = ()
    """Names of the tensors in each parameter's state; they are initialised to zero."""

    step_size: float | None = None
    """Factor of the gradient, or of the search direction, in the last update; None before the first."""

    def __init__(
        self, params: ParamsT, lr: float, *, momentum: float = 0.9, weight_decay: float = 0.0, **numbers: float
    ) -> None:
        check_lr(lr, 1)
        check_nonnegative("weight_decay", weight_decay)
        check_momentum(momentum)
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, **numbers})

    @torch.no_grad()
    def step(self, closure: Callable[[], Loss] | None = None, *, loss: Loss | None = None) -> Loss | None:  # type: ignore[override]
        """Update the parameters.

        Args:
            closure: returns the loss, and may recompute it and its gradients.
            loss: the loss whose gradients are in the parameters' ``grad``.
        """
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if loss is None:  # torch.distributed.checkpoint creates the state by a step with lr = 0
            if any(group["lr"] for group in self.param_groups):
                raise ValueError("step needs the loss of the batch: call step(loss=loss) or step(lambda: loss)")
            for _, p, _ in self._parameters():
                self._buffers_of(p)
            return None
        check_loss(loss)
        self._update(float(loss))
        return loss

    @abstractmethod
    def _update(self, loss: float) -> None: ...

    def _parameters(self) -> Iterator[tuple[dict[str, Any], Tensor, Tensor]]:
        """Yield the group, the parameter and its gradient, for each parameter with a gradient."""
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
        r"""Return the value and the gradients of :math:`\ell(w) + \frac{\lambda}{2} \|w\|^2`."""
        gradients = []
        for group, p, gradient in self._parameters():
            decay = group["weight_decay"]
            gradients.append(gradient.add(p, alpha=decay) if decay else gradient)
            loss += 0.5 * decay * inner_product([p], [p]) if decay else 0.0
        return loss, gradients


def inner_product(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> float:
    """Return the inner product of two lists of tensors, each taken as one vector; they may be sharded."""
    products = [
        sharding.reduce_over_mesh(torch.dot(sharding.local(x).flatten(), sharding.local(y).flatten()), x)
        for x, y in zip(xs, ys, strict=True)
    ]
    return torch.stack(products).sum().item() if products else 0.0


def ratio(numerator: float, denominator: float) -> float:
    """Return the quotient, or zero if the denominator is zero: without a gradient there is no step."""
    return numerator / denominator if denominator else 0.0


class DFW(LossBased):
    r"""Deep Frank-Wolfe (Berrada, Zisserman and Kumar, ICLR 2019, Algorithm 2), for piecewise linear losses.

    One Frank-Wolfe step on the dual of a proximal problem with a linear SVM; its optimal size has a closed form.
    With the gradient :math:`\delta` of the loss :math:`\ell` and that of the regularisation, :math:`r = \lambda w`:

    .. math::
        \gamma &= \Big[ \frac{\ell - \eta \langle \delta, r \rangle}{\eta \|\delta\|^2} \Big]_0^1 \\
        z &\leftarrow \mu z - \eta \gamma (\delta + r) \\
        w &\leftarrow w - \eta (r + \gamma \delta) + \mu z

    Without weight decay this is ALI-G. Unlike the authors' code, this one does not add 1e-5 to the denominator.

    Args:
        params: parameters or parameter groups.
        lr: the proximal coefficient :math:`\eta`.
        momentum: :math:`\mu`, as in the paper.
        weight_decay: :math:`\lambda`.
    """

    buffers = ("velocity",)

    def _update(self, loss: float) -> None:
        numerator, denominator = loss, 0.0
        for group, p, gradient in self._parameters():
            lr, decay = float(group["lr"]), group["weight_decay"]
            numerator -= lr * decay * inner_product([gradient], [p]) if decay else 0.0
            denominator += lr * inner_product([gradient], [gradient])
        gamma = min(max(ratio(numerator, denominator), 0.0), 1.0)
        for group, p, gradient in self._parameters():
            lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
            velocity = self._buffers_of(p)["velocity"]
            velocity.mul_(momentum).add_(gradient, alpha=-lr * gamma).add_(p, alpha=-lr * gamma * decay)
            p.mul_(1.0 - lr * decay).add_(gradient, alpha=-lr * gamma).add_(velocity, alpha=momentum)
        self.step_size = float(self.param_groups[0]["lr"]) * gamma


class BPGrad(LossBased):
    r"""BPGrad (Zhang, Wu and Wang, CVPR 2018), in the form that its authors use in practice.

    If :math:`f` has the Lipschitz constant :math:`L`, no point closer than :math:`f(w) / L` can be a minimum with value
    zero. The step has this length and the direction of the negative gradient :math:`-g`:

    .. math::
        v &\leftarrow \mu v - \frac{f(w)}{L} \frac{g}{\|g\|} \\
        w &\leftarrow w + v

    This is the practical solver of the paper with one sample in each branch and a lower bound of zero
    (:math:`\rho = 0`), as in the experiments of Berrada et al. (2019, 2020) and of the BORAT paper. Unlike their code,
    this one also moves without momentum.

    Args:
        params: parameters or parameter groups.
        lr: :math:`1 / L`. The authors' code for CIFAR-10 has :math:`L = 50`.
        momentum: :math:`\mu`, 0.9 as in the authors' code.
        weight_decay: :math:`\lambda`; both :math:`f` and :math:`g` have the term :math:`\frac{\lambda}{2} \|w\|^2`.
    """

    buffers = ("velocity",)

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

    def __init__(self, params: ParamsT, lr: float, *, weight_decay: float = 0.0) -> None:
        super().__init__(params, lr, momentum=0.0, weight_decay=weight_decay)

    def _update(self, loss: float) -> None:
        value, gradients = self._regularised(loss)
        polyak = max(ratio(value, 0.5 * inner_product(gradients, gradients)), 0.0)
        for (group, p, _), gradient in zip(self._parameters(), gradients, strict=True):
            p.add_(gradient, alpha=-min(polyak, float(group["lr"])))
        self.step_size = min(polyak, float(self.param_groups[0]["lr"]))


class L4Mom(LossBased):
    r"""L4 (Rolínek and Martius, NeurIPS 2018): step to the point where the linearised loss reaches the smallest loss.

    .. math::
        w \leftarrow w - \alpha \frac{\ell - \gamma L_{\min}}{\langle g, v \rangle + \epsilon} \, v

    where :math:`g` is the bias-corrected moving average of the gradients, :math:`v` the direction of the underlying
    method, here :math:`g` itself, and :math:`L_{\min}` an estimate of the smallest loss: initially 0.75 times the first
    loss, then the smallest loss so far, multiplied by :math:`1 + 1/\tau` after each step. The constants are those of
    the paper and of the authors' code.

    Args:
        params: parameters or parameter groups.
        lr: the fraction :math:`\alpha`.
        momentum: decay rate of the moving average of the gradients.
        weight_decay: :math:`\lambda`; the loss and its gradient have the term :math:`\frac{\lambda}{2} \|w\|^2`.
    """

    buffers: tuple[str, ...] = ("average",)

    def __init__(self, params: ParamsT, lr: float, *, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        super().__init__(params, lr, momentum=momentum, weight_decay=weight_decay, steps=0, smallest_loss=0.0)

    def _update(self, loss: float) -> None:
        value, gradients = self._regularised(loss)
        first = self.param_groups[0]
        first["steps"] += 1
        averages, directions = [], []
        for (group, p, _), gradient in zip(self._parameters(), gradients, strict=True):
            averages.append(self._average(p, "average", gradient, group["momentum"]))
            directions.append(self._direction(p, gradient, averages[-1]))
        smallest = FIRST_REACHABLE * value if first["steps"] == 1 else min(first["smallest_loss"], value)
        factor = (value - REACHABLE * smallest) / (inner_product(averages, directions) + L4_EPS)
        first["smallest_loss"] = (1.0 + 1.0 / MEMORY) * smallest
        for (group, p, _), direction in zip(self._parameters(), directions, strict=True):
            p.add_(direction, alpha=-group["lr"] * factor)
        self.step_size = float(first["lr"]) * factor

    def _direction(self, p: Tensor, gradient: Tensor, average: Tensor) -> Tensor:
        return average

    def _average(self, p: Tensor, name: str, new: Tensor, decay: float) -> Tensor:
        """Update a moving average and return it with bias correction."""
        average, steps = self._buffers_of(p)[name], int(self.param_groups[0]["steps"])
        return average.lerp_(new, 1.0 - decay) / (1.0 - decay**steps)


class L4Adam(L4Mom):
    """L4 along the direction of Adam; see :class:`L4Mom`."""

    buffers = ("average", "average_square")

    def _direction(self, p: Tensor, gradient: Tensor, average: Tensor) -> Tensor:
        square = self._average(p, "average_square", gradient.square(), BETA2)
        return average / (square.sqrt_() + ADAM_EPS)
