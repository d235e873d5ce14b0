"""Moving a model to its optimizers' result, where a trainer evaluates and saves it."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.hooks import RemovableHandle

from borat import FreeBORAT
from borat._optim.base import LossOptimizer
from borat.batchnorm import update_statistics

Forward = Callable[[nn.Module, Any], object]


class ResultPoint:
    """Move a model to the result and back; with FreeBORAT, measure the running statistics there.

    Measuring takes a forward pass for each stored batch, so it happens on demand and at most once after each step:
    before an evaluation, at the end, and when the model's ``state_dict()`` is called.

    Args:
        model: the model that is trained.
        optimizers: its optimizers.
        forward: function that runs the model on a batch, as for :func:`borat.batchnorm.update_statistics`.
        around: context manager for forward passes, such as autocast.
        batches: number of training batches to store, if there are statistics to measure.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizers: Sequence[LossOptimizer] = (),
        forward: Forward | None = None,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
        batches: int = 8,
    ) -> None:
        self._model = model or nn.Module()
        self._optimizers = optimizers
        self._forward = forward
        self._around = around
        is_needed = has_statistics(self._model) and any(isinstance(o, FreeBORAT) for o in optimizers)
        self._batches: deque[Any] = deque(maxlen=batches if is_needed else 0)
        self._is_due = False
        self._hook: RemovableHandle | None = None

    def store(self, batch: Any) -> None:
        """Store a training batch."""
        self._batches.append(batch)

    def train(self) -> None:
        """Move the model to the point where gradients are measured."""
        self._remove_hook()
        self._is_due = True
        for optimizer in self._optimizers:
            optimizer.train()

    def eval(self) -> None:
        """Move the model to the result; measure its statistics when it is saved."""
        for optimizer in self._optimizers:
            optimizer.eval()
        if self._is_due and self._batches and self._hook is None:
            hook = _BeforeSaving(self)
            self._hook = self._model.register_state_dict_pre_hook(hook)  # type: ignore[no-untyped-call]

    def measure(self) -> None:
        """Move the model to the result and measure its statistics."""
        if self._is_due and self._batches:
            self._measure()
        for optimizer in self._optimizers:
            optimizer.eval()

    def _measure(self) -> None:
        self._remove_hook()
        with self._around():
            for optimizer in self._optimizers:  # the last round counts: then all are at their results
                update_statistics(
                    self._model, self._batches, optimizer, count=len(self._batches), forward=self._forward
                )
        self._is_due = False

    def _remove_hook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def has_statistics(model: nn.Module) -> bool:
    """Return True if there are normalisation layers with running statistics."""
    return any(isinstance(layer, _NormBase) and layer.track_running_stats for layer in model.modules())


class _BeforeSaving:
    """Hook of the model's ``state_dict()``. It does nothing in a copy of the model, which is not trained."""

    def __init__(self, result: ResultPoint | None = None) -> None:
        self._result = (lambda: None) if result is None else weakref.ref(result)

    def __call__(self, *_: object) -> None:
        result = self._result()
        if result is not None:
            result.measure()

    def __reduce__(self) -> tuple[type[_BeforeSaving], tuple[()]]:
        return _BeforeSaving, ()
