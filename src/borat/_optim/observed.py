"""The loss that is told before a step, where a trainer calls that without it."""

from __future__ import annotations

import weakref

from torch import Tensor

from borat._state import sharding
from borat._state.store import Loss


class Observed:
    """The losses told since the last step, and the gradient that the last of them was told with."""

    def __init__(self, total: Loss | None = None, param: Tensor | None = None) -> None:
        self.total = total
        self._param = param
        grad = None if param is None else param.grad
        self._gradient = None if grad is None else weakref.ref(grad)
        self._version = 0 if grad is None else _version(grad)

    def followed_by(self, loss: Loss, params: list[Tensor]) -> Observed:
        """With one more loss, or with this loss alone where the gradients of the earlier ones are gone."""
        param = next((p for p in params if p.grad is not None), None)
        total = None if param is None or self._is_gone() else self.total
        return Observed(loss if total is None else total + loss, param)

    def _is_gone(self) -> bool:
        """Return True if the gradient was removed. One that accumulates changes in place, which raises its version."""
        if self._param is None or self._gradient is None:  # told before the backward pass
            return False
        grad = self._param.grad
        return grad is None or (grad is not self._gradient() and _version(grad) <= self._version)


def _version(grad: Tensor) -> int:
    return sharding.local(grad)._version
