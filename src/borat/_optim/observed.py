"""Losses passed to the optimizer before a step, for trainers that call ``step()`` without a loss."""

from __future__ import annotations

import weakref

from torch import Tensor

from borat._state import sharding
from borat._state.store import Loss


class Observed:
    """Sum of the losses since the last step, and the gradient at the time of the last of them."""

    def __init__(self, total: Loss | None = None, param: Tensor | None = None) -> None:
        self.total = total
        self._param = param
        grad = None if param is None else param.grad
        self._gradient = None if grad is None else weakref.ref(grad)
        self._version = 0 if grad is None else _version(grad)

    def plus(self, loss: Loss, params: list[Tensor]) -> Observed:
        """Return the sum with one more loss; this loss alone if the gradients of the earlier ones were reset."""
        param = next((p for p in params if p.grad is not None), None)
        total = None if param is None or self._was_reset() else self.total
        return Observed(loss if total is None else total + loss, param)

    def _was_reset(self) -> bool:
        """Return True if the gradient was reset. One that accumulates changes in place, which raises its version."""
        if self._param is None or self._gradient is None:  # observed before the backward pass
            return False
        grad = self._param.grad
        return grad is None or (grad is not self._gradient() and _version(grad) <= self._version)


def _version(grad: Tensor) -> int:
    return sharding.local(grad)._version
