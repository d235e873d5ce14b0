"""What our optimizers share: the loss on its way in, batches that are dropped, and the two points of the model."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import ParamsT

from borat import sharding
from borat.capturable import CapturableOptimizer
from borat.checks import check_flag, check_loss, is_number
from borat.keeping import Constraint
from borat.measure import Loss, Measure
from borat.observed import Observed
from borat.parameters import View

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_WAYS_TO_PASS_THE_LOSS = (
    "call step(loss=loss) after loss.backward(), step(closure) with a closure that computes the loss and its "
    "gradients, or step(lambda: loss); where a trainer calls step(), call observe(loss) before it does"
)


class LossOptimizer(CapturableOptimizer):
    """An optimizer that sees the loss of each batch, and measures gradients at other points than its result."""

    same_batch = False
    """Whether ``step(closure)`` goes on with the same batch until the bundle is complete."""
    _observed: Observed
    _is_projected: bool

    def __init__(
        self,
        params: ParamsT,
        defaults: dict[str, Any],
        *,
        constraint: Constraint | None,
        process_group: ProcessGroup | None,
        reduce_loss: bool,
        capturable: bool | None,
    ) -> None:
        check_flag("reduce_loss", reduce_loss)
        if capturable is not None:
            check_flag("capturable", capturable)
        if not is_number(defaults["lower_bound"]) or math.isinf(defaults["lower_bound"]):
            raise ValueError(f"lower_bound must be a finite number, got {defaults['lower_bound']!r}")
        if constraint is not None and not callable(constraint):
            raise ValueError(f"constraint must be None or a callable on a list of parameters, got {constraint!r}")
        self.constraint = constraint
        self.process_group = process_group
        self.reduce_loss = reduce_loss
        self.capturable = capturable
        self._last_step = None
        self._warned = set()
        self._observed = Observed()
        self._is_projected = False
        super().__init__(params, {**defaults, "lower_bound": float(defaults["lower_bound"])})
        self._is_projected = self._project(self._all_params())

    # The public face

    def step(  # type: ignore[override]
        self, closure: Callable[[], Loss] | None = None, *, loss: Loss | None = None
    ) -> Loss | None:
        """Take one batch and move the model.

        Args:
            closure: returns the loss, and may compute it and its gradients anew.
            loss: the loss whose gradients are in the parameters' ``grad``. Without either, and in place of the
                closure's, it is the loss that was told to :meth:`observe`.

        Returns:
            The loss.
        """
        if torch.compiler.is_compiling() and not self._is_on_device():
            return self._step_uncompiled(closure, loss)
        return self._step(closure, loss)

    def _step(self, closure: Callable[[], Loss] | None, loss: Loss | None) -> Loss | None:
        if closure is not None and loss is not None:
            raise ValueError("step takes either a closure or the loss, got both")
        if closure is not None and not callable(closure):
            raise ValueError(f"closure must be callable, got a {type(closure).__name__}: {_WAYS_TO_PASS_THE_LOSS}")
        if closure is None:
            told = self._observed.total if loss is None else loss
            if told is None:
                self._initialise_state()
                return None
            self._check_training()
            if self._observed.total is not None:  # PyTorch 2.6's compiler can set no attribute of an optimizer
                self.forget_observed()
            self._take_batch(told)
            return told
        self._check_training()
        loss = self._evaluate(closure)
        if loss is None and self._has_no_gradients():  # how a closure skips a batch
            self._take_batch(math.nan)
            return None
        if self._take_batch(loss) and self.same_batch:
            self._stay_with_batch(closure, loss)
        return loss

    # As PyTorch does for its own; torch.compiler.disable would import the compiler with borat.
    _step_uncompiled = _disable_dynamo(_step)

    def observe(self, loss: Loss) -> None:
        """Tell the loss of the next :meth:`step`, where a trainer calls that without it.

        With gradient accumulation, tell the loss of each micro-batch as it is differentiated, that is divided by
        their number: what is told before a step adds up, as the gradients do. What was told is forgotten with the
        gradients: by :meth:`zero_grad`, and where the model's own ``zero_grad()`` has removed them since, as happens
        when a step is skipped. Only where gradients are kept and filled with zeros (``set_to_none=False``, on the
        model) that cannot be seen: then call the optimizer's ``zero_grad``.
        """
        check_loss(loss)
        value = sharding.whole(loss.detach()).reshape(()).clone() if isinstance(loss, Tensor) else loss
        self._observed = self._observed.followed_by(value, self._all_params())

    def forget_observed(self) -> None:
        """Forget the loss that was told to :meth:`observe`, because its step is skipped."""
        self._observed = Observed()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and with them the loss that was told to :meth:`observe`."""
        super().zero_grad(set_to_none)
        self.forget_observed()

    def eval(self) -> None:
        """Put the model at the result, to evaluate or save it; :meth:`train` goes back. At any time, and repeatedly."""
        if not self._numbers.evaluating:
            self._to_result(self._views(with_gradients=False))
            self._bundle.evaluating = True

    def train(self) -> None:
        """Put the model back where gradients are measured, bit for bit."""
        if self._numbers.evaluating:
            self._from_result(self._views(with_gradients=False))
            self._bundle.evaluating = False

    @property
    def bundle_size(self) -> int:
        """The number of pieces of a full bundle, the constant one included."""
        return int(self.param_groups[0]["bundle_size"])

    @property
    def dropped_batches(self) -> int:
        """How many batches were dropped because their loss or gradients were not finite."""
        return self._bundle.dropped

    # What each optimizer does

    def _take(self, loss: Loss, views: list[View]) -> bool:
        """Add the batch to the bundle and move; whether it was taken and the update is still incomplete."""
        raise NotImplementedError

    def _to_result(self, views: list[View]) -> None:
        raise NotImplementedError

    def _from_result(self, views: list[View]) -> None:
        raise NotImplementedError

    def _stay_with_batch(self, closure: Callable[[], Loss], loss: Loss) -> None:
        """Evaluate the closure until the bundle is complete."""
        raise NotImplementedError

    def _check_group(self, group: dict[str, Any]) -> None:
        """Refuse impossible values; schedules write learning rates and momenta at any time."""
        raise NotImplementedError

    # One batch

    @torch.no_grad()
    def _take_batch(self, loss: Loss) -> bool:
        check_loss(loss)
        if self._has_no_gradients():
            if not self._is_one_of_several():
                return False
            loss = math.nan  # the others wait for this process, and will drop the batch as it does
        for group in self.param_groups:
            self._check_group(group)
        if not self._is_projected:
            self._is_projected = self._project(self._all_params())
        if self._is_on_device():
            return self._take_on_device(loss)
        self._leave_device()
        return self._take(loss, self._views(with_gradients=True))

    def _evaluate(self, closure: Callable[[], Loss]) -> Loss:
        with torch.enable_grad():
            loss = closure()
        told, self._observed = self._observed.total, Observed()
        return loss if told is None else told

    @property
    def _measure(self) -> Measure:
        device = self.param_groups[0]["params"][0].device
        return Measure(self.process_group, self.reduce_loss, device, len(self.param_groups))

    def _drop(self, loss: float) -> None:
        self._bundle.dropped += 1
        self._warn_of_drop(loss)

    def _warn_of_drop(self, loss: float) -> None:
        what = (
            f"the loss {loss:g} is not finite" if not math.isfinite(loss) else "a gradient is not finite or too large"
        )
        self._warn_once("dropped", f"{what}: the batch is dropped, as are others like it (see dropped_batches).")

    def _tell(self, numbers: dict[str, Any], dropped_before: int) -> None:
        if numbers["dropped"] > dropped_before:
            self._warn_of_drop(numbers["dropped_loss"])
        bound = self.param_groups[0]["lower_bound"]
        self._warn_of_bound(bound + numbers["below"], bound)

    def _warn_of_bound(self, loss: float, lower_bound: float) -> None:
        if loss < lower_bound:
            self._warn_once(
                "lower_bound",
                f"the loss {loss:g} is below lower_bound={lower_bound:g}. Such a batch makes no step "
                "towards a smaller loss, so that training may stall: pass a lower bound that holds.",
            )

    def _warn_once(self, subject: str, message: str) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            warnings.warn(f"{type(self).__name__}: {message}", stacklevel=_level_of_the_user())

    def _check_training(self) -> None:
        if self._numbers.evaluating:
            raise RuntimeError("the model is at its result for evaluation: call the optimizer's train() before step()")

    def _project(self, params: list[Tensor]) -> bool:
        """Apply the constraint; False where there is nothing to apply it to yet."""
        if self.constraint is not None:
            if any(p.is_meta for p in params):
                return False
            with torch.no_grad():
                self.constraint(params)
        return True

    def _is_one_of_several(self) -> bool:
        """Whether other processes wait for this one's numbers."""
        return self.reduce_loss and sharding.world_size(self.process_group) > 1

    def _has_no_gradients(self) -> bool:
        return all(p.grad is None for p in self._all_params())

    def _initialise_state(self) -> None:
        """Allocate the state without a batch.

        Checkpointing tools call ``step()`` with zero gradients and zero learning rates to that end, see
        ``torch.distributed.checkpoint.state_dict``; from anyone else it is a mistake.
        """
        if any(float(group["lr"]) for group in self.param_groups) or any(
            p.grad is not None and p.grad.to_dense().count_nonzero() for p in self._all_params()
        ):
            raise ValueError(f"step needs the loss of the batch: {_WAYS_TO_PASS_THE_LOSS}")
        self._views(with_gradients=True)

    # Groups and copies

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, at any time. What each may have for itself is said of ``params``."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, got {type(param_group).__name__}")
        first = self.param_groups[0] if self.param_groups else self.defaults
        for key in self._SHARED:
            value = param_group.setdefault(key, first[key])
            if value is not first[key] and value != first[key]:  # NaN, which no value equals, is refused for itself
                raise ValueError(f"{key} must be the same for all parameter groups, got {value!r}")
        self._check_group({**self.defaults, **param_group})
        super().add_param_group(param_group)

    _SHARED: tuple[str, ...] = ("bundle_size", "lower_bound")
    """What all parameter groups must have in common."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("_observed", Observed())
        self.__dict__.setdefault("_is_projected", True)


def _level_of_the_user() -> int:
    """How many calls away the code is that uses the optimizer, for warnings to point there."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("borat", "torch"):
        level, frame = level + 1, frame.f_back
    return level
