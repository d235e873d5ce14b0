"""An optimizer whose bundle may be on the device: who takes the step, and what happens when the host looks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from borat.bundle import StepInfo
from borat.keeping import KeepingOptimizer, Numbers
from borat.measure import Loss, Measure
from borat.on_device import OnDevice, are_capturable
from borat.parameters import Roster, Slot


class CapturableOptimizer(KeepingOptimizer):
    """An optimizer that has two forms of its bundle, one on the host and one that never waits.

    At any time one of both is right. With a step on the device that one is ahead; the host catches up when somebody
    asks for a number, and then goes on as if it had taken the steps itself.
    """

    capturable: bool | None
    """Whether steps are to be taken on the device: always, never, or by default where that is no CPU."""
    _COPIED = (*KeepingOptimizer._COPIED, "capturable")
    _on_device: OnDevice | None = None
    _roster_on_device: Roster
    same_batch: bool

    @property
    def last_step(self) -> StepInfo | None:
        """What the last completed update did; None before the first."""
        self._look()
        return super().last_step

    @property
    def _bundle(self) -> Numbers:
        self._look()
        return self._numbers

    @property
    def _measure(self) -> Measure:
        raise NotImplementedError

    def _new_on_device(self, slots: list[Slot]) -> OnDevice:
        """Let these parameters take part in the bundle, as one on the device."""
        raise NotImplementedError

    def _tell(self, numbers: dict[str, Any], dropped_before: int) -> None:
        """Warn of what has happened since the host has looked last."""
        raise NotImplementedError

    def _is_on_device(self) -> bool:
        """Who takes the next step: this is the one place that chooses."""
        size = self.param_groups[0]["bundle_size"]
        return not self.same_batch and are_capturable(self._all_params(), size, self.capturable)

    def _take_on_device(self, loss: Loss) -> bool:
        if not torch.compiler.is_compiling():
            self._prepare()
        if self._on_device is None:
            raise RuntimeError("take one step before a compiled one: it makes the optimizer's state")
        self._on_device.take(loss, self.param_groups, self._measure, self.constraint)
        return False

    def _prepare(self) -> None:
        """See to it that the bundle on the device is one of the parameters at hand."""
        if not self._fits(self._params_with_gradients()):
            # Which of the others take part may be a question to the bundle.
            slots = list(self._wanted_slots(with_gradients=True))
            if not self._fits([slot.param for slot in slots]):
                self._enter_device(slots)

    def _enter_device(self, slots: list[Slot]) -> None:
        self._look()
        self._on_device = self._new_on_device(slots)
        self._roster_on_device = self._new_roster(slots)
        self._forget_parts()  # what is kept has moved

    def _fits(self, params: list[Tensor]) -> bool:
        return self._on_device is not None and self._are_current(self._roster_on_device, params)

    def _look(self) -> None:
        """Let the host catch up."""
        if self._on_device is None or not self._on_device.is_ahead:
            return
        numbers, info = self._on_device.read()
        before, size = self._numbers, self.param_groups[0]["bundle_size"]
        self._numbers = self._new_bundle(size, len(self.param_groups), {**numbers, "evaluating": before.evaluating})
        self._last_step = info or self._last_step
        self._tell(numbers, before.dropped)

    def _leave_device(self) -> None:
        self._look()
        self._on_device = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self._leave_device()
        super().add_param_group(param_group)

    def __repr__(self) -> str:
        text = super().__repr__()
        return text.replace("(", "(\nSteps on the device, without waiting for it", 1) if self._is_on_device() else text

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._on_device = None
        super().__setstate__(state)
        self.__dict__.setdefault("capturable", None)
