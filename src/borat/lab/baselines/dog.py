"""DoG from dog-optimizer, with averaging of its iterates."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import dog  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from borat._optim.base import Constraint

GAMMA = 8.0
"""Exponent of the polynomial decay, as in the DoG paper."""


class DoG(dog.DoG):  # type: ignore[misc]
    r"""Distance over gradients (Ivgi, Hinder and Carmon, 2023), evaluated at the average of its iterates.

    The authors call averaging crucial if the step size does not decay. This is their polynomial-decay averaging,

    .. math::
        \bar w_t = \bar w_{t-1} + \frac{1 + \gamma}{t + \gamma} (w_t - \bar w_{t-1}), \qquad \gamma = 8,

    of the parameters and the running statistics of batch normalisation. The library's own averager needs a second
    model and is not part of the optimizer's state. :meth:`eval` moves the model to the average, :meth:`train` back.

    Args:
        model: the model to train.
        lr: the factor :math:`c`; 1 is recommended.
        weight_decay: added to the gradient.
        constraint: projects the parameters after each step.
    """

    def __init__(
        self, model: nn.Module, lr: float = 1.0, *, weight_decay: float = 0.0, constraint: Constraint | None = None
    ) -> None:
        self.model, self.constraint = model, constraint
        params = [p for p in model.parameters() if p.requires_grad]
        has_norm = any(isinstance(module, _BatchNorm) for module in model.modules())
        first_distance = 1e-4 if has_norm else 1e-6  # as the library recommends
        super().__init__(params, reps_rel=first_distance, lr=lr, weight_decay=weight_decay)
        self.param_groups[0].update(averaged=0, evaluating=False)
        self._project()

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        if self.param_groups[0]["evaluating"]:
            raise RuntimeError("step() must not be called between eval() and train(): the model is at the average")
        loss: Tensor | None = super().step(closure)
        self._project()
        self._average()
        return loss

    @property
    def step_size(self) -> float | None:
        """Distance over the root of the sum of squared gradient norms, times ``lr``."""
        eta = self.param_groups[0].get("eta")
        return None if eta is None else float(eta[0])

    def eval(self) -> None:
        """Move the model to the average of its iterates."""
        self._swap(evaluating=True)

    def train(self) -> None:
        """Move the model back to the last iterate, bit for bit."""
        self._swap(evaluating=False)

    def _average(self) -> None:
        group = self.param_groups[0]
        group["averaged"] += 1
        weight = (1.0 + GAMMA) / (group["averaged"] + GAMMA)
        if "averages" not in group:
            group["averages"] = [x.detach().clone() for x in self._tensors()]
        group["averages"] = [
            a.to(x.device).lerp_(x, weight) for a, x in zip(group["averages"], self._tensors(), strict=True)
        ]

    @torch.no_grad()
    def _swap(self, *, evaluating: bool) -> None:
        group = self.param_groups[0]
        if group["evaluating"] == evaluating:
            return
        group["evaluating"] = evaluating
        for i, x in enumerate(self._tensors() if "averages" in group else ()):
            other = group["averages"][i].to(x.device)
            group["averages"][i] = x.detach().clone()
            x.copy_(other)

    def _tensors(self) -> Iterator[Tensor]:
        """Yield the averaged tensors."""
        yield from self.param_groups[0]["params"]
        for module in self.model.modules():
            if isinstance(module, _BatchNorm):
                yield from (x for x in (module.running_mean, module.running_var) if x is not None)

    def _project(self) -> None:
        if self.constraint is not None:
            self.constraint(self.param_groups[0]["params"])
