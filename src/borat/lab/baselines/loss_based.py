"""Base of the optimizers written here, which need the loss to choose their step size."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from borat._checks import check_lr, check_momentum, is_number
from borat._state import sharding
from borat._state.store import check_loss

Loss = Tensor | float


class LossBased(Optimizer):
    """An optimizer whose step needs the loss of the batch beside its gradients.

    Numbers that it has to remember are in its parameter groups, tensors in its state: a state dict has it all.
    """

    buffers: tuple[str, ...] = ()
    """The names of the tensors that are kept for each parameter; they start at zero."""

    step_size: float | None = None
    """The factor of the gradient, or of what takes its place, in the last update; None before the first."""

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
        """Make the state without a batch: tools that load checkpoints step with learning rates of zero to that end."""
        if any(group["lr"] for group in self.param_groups):
            raise ValueError("step needs the loss of the batch: call step(loss=loss) or step(lambda: loss)")
        for _, p, _ in self._parameters():
            self._buffers_of(p)

    def _parameters(self) -> Iterator[tuple[dict[str, Any], Tensor, Tensor]]:
        """The group, the parameter and the gradient, where there is one."""
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
        r"""The value and the gradient of :math:`\ell(w) + \frac{\lambda}{2} \|w\|^2`."""
        gradients = []
        for group, p, gradient in self._parameters():
            decay = group["weight_decay"]
            gradients.append(gradient.add(p, alpha=decay) if decay else gradient)
            loss += 0.5 * decay * inner_product([p], [p]) if decay else 0.0
        return loss, gradients


def inner_product(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> float:
    """Of all tensors as one vector, also where they are spread over several processes."""
    products = [
        sharding.over_mesh(torch.dot(sharding.local(x).flatten(), sharding.local(y).flatten()), x)
        for x, y in zip(xs, ys, strict=True)
    ]
    return torch.stack(products).sum().item() if products else 0.0


def ratio(numerator: float, denominator: float) -> float:
    """Their quotient; zero where there is nothing to divide by, since no gradient is no step."""
    return numerator / denominator if denominator else 0.0
