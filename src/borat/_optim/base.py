"""Base class of the optimizers: passing the loss, the two points of the model, parameter groups, checkpoints."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import Optimizer, ParamsT

from borat._checks import check_flag, is_number
from borat._numbers.dual_batched import LIMIT
from borat._numbers.step_info import StepInfo
from borat._optim.observed import Observed
from borat._state import checkpoint, sharding
from borat._state.slots import Batch, Members, Part, Slot, TensorSpec
from borat._state.store import Loss, Store, world_size

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Constraint = Callable[[list[Tensor]], object]

_WAYS_TO_PASS_THE_LOSS = (
    "call step(loss=loss) after loss.backward(), step(closure) with a closure that computes the loss and its "
    "gradients, or step(lambda: loss); if a trainer calls step(), call observe(loss) before it does"
)
_SYNCHRONOUS = ("cpu", "meta")  # device types that execute operations immediately
_WITHOUT_FLOAT64 = ("mps",)


class LossOptimizer(Optimizer):
    """Base class of optimizers that use the loss of each batch, and whose result differs from the trained point."""

    same_batch = False
    """True if ``step(closure)`` measures all pieces of a bundle on the closure's batch."""

    _COPIED: tuple[str, ...] = ("constraint", "reduce_loss", "capturable", "_warned", "_last_step")
    """Attributes that are copied in addition to the state and the parameter groups."""
    _SHARED: tuple[str, ...] = ("bundle_size", "lower_bound")
    """Options that all parameter groups must have in common."""

    def __init__(
        self,
        params: ParamsT,
        defaults: dict[str, Any],
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
        self._warned: set[str] = set()
        self._loading: Mapping[str, Any] | None = None
        self._reset(defaults["bundle_size"], self._new_state(defaults["bundle_size"], 0))
        self._is_projected = False
        super().__init__(params, {**defaults, "lower_bound": float(defaults["lower_bound"])})
        self._is_projected = self._project(self._all_params())

    def _reset(self, bundle_size: int, state: Any) -> None:
        """Set the attributes that belong to the optimizer's state."""
        state = state._replace(margin=math.inf)  # warn only about future losses
        self._store = Store(state, max(bundle_size - 1, 1))
        self._last_step: tuple[float, StepInfo] | None = None
        self._is_evaluating = False
        self._observed = Observed()
        self._reported = int(state.dropped)
        """Number of dropped batches at the last report."""
        self._members = Members()
        self._options: list[Any] = []
        self._specs_of_groups: list[Any] = []

    # The public interface

    def step(  # type: ignore[override]
        self, closure: Callable[[], Loss] | None = None, *, loss: Loss | None = None
    ) -> Loss | None:
        """Perform one step with the loss and the gradients of a batch.

        Args:
            closure: function that returns the loss and may compute it and its gradients. A loss passed to
                :meth:`observe` replaces the returned one.
            loss: the loss whose gradients are in the parameters' ``grad``. If both arguments are None, the loss passed
                to :meth:`observe` is used.

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
            value = self._observed.total if loss is None else loss
            if value is None:
                self._initialise_state()
                return None
            self._check_training()
            if self._observed.total is not None:  # PyTorch 2.6 cannot compile assignments to an optimizer
                self.forget_observed()
            self._take_batch(value)
            return value
        self._check_training()
        loss = self._call_closure(closure)
        if loss is None and not self._params_with_gradients():  # the closure skips the batch
            self._take_batch(math.nan)
            return None
        self._take_batch(loss)
        if self.same_batch:
            self._complete_on_batch(closure, loss)
        return loss

    # As for PyTorch's own optimizers. torch.compiler.disable would import the compiler.
    _step_uncompiled = _disable_dynamo(_step)

    def observe(self, loss: Loss) -> None:
        """Set the loss of the next :meth:`step`, for trainers that call it without one.

        With gradient accumulation, pass the loss of each micro-batch as it is differentiated, that is, divided by the
        number of micro-batches: losses passed before a step add up, as the gradients do. They are discarded together
        with the gradients, for example when a step is skipped: by :meth:`zero_grad`, and by the model's ``zero_grad()``
        if it sets gradients to None. If it fills them with zeros (``set_to_none=False``), the optimizer cannot notice;
        call the optimizer's ``zero_grad`` instead.
        """
        check_loss(loss)
        value = sharding.full_tensor(loss.detach()).reshape(()).clone() if isinstance(loss, Tensor) else loss
        self._observed = self._observed.plus(value, self._all_params())

    def forget_observed(self) -> None:
        """Discard the loss passed to :meth:`observe`, for a step that is skipped."""
        self._observed = Observed()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients and discard the loss passed to :meth:`observe`."""
        super().zero_grad(set_to_none)
        self.forget_observed()

    def eval(self) -> None:
        """Move the model to the result, to evaluate or save it. A second call has no effect."""
        if not self._is_evaluating:
            self._to_result(self._find_parts())
            self._is_evaluating = True

    def train(self) -> None:
        """Move the model back to the point where gradients are measured, bit for bit."""
        if self._is_evaluating:
            self._from_result(self._find_parts())
            self._is_evaluating = False

    @property
    def bundle_size(self) -> int:
        """Number of pieces of a full bundle, the constant one included."""
        return int(self.param_groups[0]["bundle_size"])

    @property
    def last_step(self) -> StepInfo | None:
        """Description of the last completed update, or None. Reading it syncs if steps run on the device."""
        state, info = self._sync()
        if self._last_step is None or self._last_step[0] != state.updates:
            if info is None or not state.updates:
                return None
            self._last_step = state.updates, self._describe(info)
        return self._last_step[1]

    @property
    def dropped_batches(self) -> int:
        """Number of dropped batches: not finite or, for FreeBORAT, outliers. Syncs like :attr:`last_step`."""
        return int(self._sync()[0].dropped)

    @property
    def zero_steps(self) -> int:
        """Number of updates with a step of length zero. Syncs like :attr:`last_step`."""
        return int(self._sync()[0].zeros)

    # Defined by subclasses

    def _new_state(self, bundle_size: int, groups: int) -> Any:
        """Return the numbers before the first batch."""
        raise NotImplementedError

    def _with_one_more_group(self, state: Any) -> Any:
        """Return the numbers with room for one more parameter group."""
        return state

    def _has_pieces(self, state: Any) -> bool:
        """Return True if the bundle has pieces; if so, its parameters take part even without a gradient."""
        raise NotImplementedError

    def _describe(self, info: Any) -> StepInfo:
        raise NotImplementedError

    def _uses_bound(self) -> bool:
        """Return True if the lower bound affects the steps."""
        raise NotImplementedError

    def _update(self, loss: Loss, batch: Batch) -> None:
        """Process a batch: the algorithm."""
        raise NotImplementedError

    def _specs(self, group: Mapping[str, Any], state: Mapping[str, Any]) -> Sequence[TensorSpec]:
        """Return the tensors to keep for a parameter of this group, given its state so far."""
        raise NotImplementedError

    def _join(self, slots: list[Slot]) -> None:
        """Add parameters to the open bundle."""
        raise NotImplementedError

    def _to_result(self, parts: list[Part]) -> None:
        """Put the model at the result."""
        raise NotImplementedError

    def _from_result(self, parts: list[Part]) -> None:
        """Put the model back where gradients are measured, bit for bit."""
        raise NotImplementedError

    def _complete_on_batch(self, closure: Callable[[], Loss], loss: Loss) -> None:
        """Measure the remaining pieces of the bundle on the closure's batch."""
        raise NotImplementedError

    def _check_group(self, group: Mapping[str, Any]) -> None:
        """Raise an error for invalid options, which schedulers may set at any time."""
        raise NotImplementedError

    # One batch

    @torch.no_grad()
    def _take_batch(self, loss: Loss) -> None:
        """Process the loss and the gradients of a batch; without any gradients, do nothing."""
        check_loss(loss)
        params = self._params_with_gradients()
        if not params:
            if not (self.reduce_loss and world_size(self.process_group) > 1):
                return
            loss = math.nan  # all processes drop the batch; returning here would leave the others waiting
        if isinstance(loss, Tensor) and type(loss) is not Tensor:
            loss = sharding.full_tensor(loss)
        if not self._is_projected:
            self._is_projected = self._project(self._all_params())
        if torch.compiler.is_compiling():
            parts = self._members.parts
            if not parts:
                raise RuntimeError("the first step must run uncompiled, because it creates the optimizer's state")
        else:
            parts = self._find_parts(params)
        self._update(loss, [(part, part.load()) for part in parts])
        if self._store.device is None:
            self._report(self._store.state)

    def _call_closure(self, closure: Callable[[], Loss]) -> Loss:
        with torch.enable_grad():
            loss = closure()
        observed, self._observed = self._observed.total, Observed()
        return loss if observed is None else observed

    def _project(self, tensors: list[Tensor], where: Any = True) -> bool:
        """Apply the constraint where the condition is true; return False if the parameters have no values yet."""
        if self.constraint is None or not (isinstance(where, Tensor) or where):
            return True
        if any(p.is_meta for p in tensors):
            return False
        with torch.no_grad():
            if not isinstance(where, Tensor):
                self.constraint(tensors)
                return True
            before = [p.clone() for p in tensors]
            self.constraint(tensors)
            pairs = zip(tensors, before, strict=True)
            torch._foreach_copy_(tensors, [torch.where(where.to(p.device), p, old) for p, old in pairs])
        return True

    def _is_on_device(self) -> bool:
        """Return True if the numbers of the next step stay on the device.

        Large bundles do not, because they have too many supports to try all at once; nor do sharded parameters, whose
        products are summed over several process groups.
        """
        if self.capturable is False or self.same_batch or self.param_groups[0]["bundle_size"] > LIMIT:
            return False
        excluded = _WITHOUT_FLOAT64 if self.capturable else (*_WITHOUT_FLOAT64, *_SYNCHRONOUS)
        params = self._all_params()
        return all(p.device.type not in excluded for p in params) and not any(map(sharding.is_sharded, params))

    def _initialise_state(self) -> None:
        """Allocate the state without a batch.

        For this purpose, ``torch.distributed.checkpoint.state_dict`` calls ``step()`` with zero gradients and zero
        learning rates. Any other call without a loss is an error.
        """
        if any(float(group["lr"]) for group in self.param_groups) or any(
            p.grad is not None and p.grad.to_dense().count_nonzero() for p in self._all_params()
        ):
            raise ValueError(f"step needs the loss of the batch: {_WAYS_TO_PASS_THE_LOSS}")
        for index, group in enumerate(self.param_groups):
            for p in group["params"]:
                if p.grad is not None:
                    self._members.slot(p, index, self.state[p], self._specs(group, self.state[p]))

    # Warnings

    def _sync(self) -> tuple[Any, Any]:
        """Return the numbers on the host, after a device sync if they are on a device."""
        state, info = self._store.sync()
        self._report(state)
        return state, info

    def _report(self, state: Any) -> None:
        """Warn about dropped batches and losses below the bound."""
        if state.dropped > self._reported:
            self._reported = int(state.dropped)
            loss = float(state.dropped_loss)
            reason = (
                "a gradient is not finite or too large" if math.isfinite(loss) else f"the loss {loss:g} is not finite"
            )
            self._warn_once("dropped", f"{reason}: the batch is dropped. dropped_batches counts such batches.")

        if state.margin < 0.0 and self._uses_bound():
            bound = self.param_groups[0]["lower_bound"]
            self._warn_once(
                "lower_bound",
                f"the loss {bound + float(state.margin):g} is below lower_bound={bound:g}. Such batches make no "
                "progress and training may stall: pass a smaller lower_bound.",
            )

    def _warn_once(self, subject: str, message: str) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            warnings.warn(f"{type(self).__name__}: {message}", stacklevel=_user_stack_level())

    def _check_training(self) -> None:
        if self._is_evaluating:
            raise RuntimeError("the model is at its result for evaluation: call the optimizer's train() before step()")

    # Parameters

    def _all_params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _params_with_gradients(self) -> list[Tensor]:
        return [p for p in self._all_params() if p.grad is not None]

    def _find_parts(self, joining: Sequence[Tensor] = ()) -> list[Part]:
        """Return the parts of the parameters in the bundle; those with gradients join it if ``joining`` is not empty.

        Syncs if the set of parameters has changed since the last batch.
        """
        device = self.param_groups[0]["params"][0].device if self._is_on_device() else None
        if self._store.device != device:
            self._store.move_to(device)
        if self._check_options() and joining and self._members.are_current(joining, self.state, device):
            return self._members.parts
        joined = self._members.joined
        members = joined if joined and self._has_pieces(self._sync()[0]) else set()
        slots = [
            self._members.slot(p, index, self.state[p], self._specs(group, self.state[p]))
            for index, group in enumerate(self.param_groups)
            for p in group["params"]
            if p in members or (joining and p.grad is not None)
        ]
        if joining:
            self._join([slot for slot in slots if slot.param not in members])
            self._members.joined = {slot.param for slot in slots}
        parts = self._members.arrange(slots, max(self.bundle_size - 1, 1), device)
        if not joining and any(part.is_sharded for part in parts):
            sharding.discard_gathered_copies()
        return parts

    def _check_options(self) -> bool:
        """Check the groups' options if they have changed; return True if they need the same state as before."""
        groups = self.param_groups
        options = [[x if type(x) is float else _version_of(x) for x in group.values()] for group in groups]
        if options == self._options:
            return True
        for group in groups:
            self._check_group(group)
        specs, before = [(len(group["params"]), self._specs(group, {})) for group in groups], self._specs_of_groups
        self._options, self._specs_of_groups = options, specs
        return specs == before

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, at any time. The class documents which options may differ between groups."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, got {type(param_group).__name__}")
        first = self.param_groups[0] if self.param_groups else self.defaults
        for key in self._SHARED:
            value = param_group.setdefault(key, first[key])
            if value is not first[key] and value != first[key]:  # a NaN gets its own error from its check
                raise ValueError(f"{key} must be the same for all parameter groups, got {value!r}")
        self._check_group({**self.defaults, **param_group})
        param_group.pop(checkpoint.NUMBERS, None)  # from another optimizer that used this group
        super().add_param_group(param_group)
        _ = self.last_step  # describe the last step before the shapes change
        self._store.move_to(None)
        self._store.state, self._store.info = self._with_one_more_group(self._store.state), None

    # Checkpoints and copies

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict. It is exact at any time, also within a bundle."""
        first = self.param_groups[0]
        hook = self.register_state_dict_pre_hook(  # runs after the user's hooks, which may train
            lambda _: first.update({checkpoint.NUMBERS: self._plain_numbers()})
        )
        try:
            return super().state_dict()
        finally:
            hook.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict, also one taken within a bundle. Its tensors are copied.

        Raises:
            ValueError: if it does not fit this optimizer and its parameters. The optimizer is then unchanged.
        """
        if not isinstance(state_dict, Mapping):
            raise ValueError(
                f"state_dict must be a dict, as state_dict() returns it, got a {type(state_dict).__name__}"
            )
        # Registered last, so that it sees the state dict that the user's hooks return.
        hook = self.register_load_state_dict_pre_hook(_check_and_remember)
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
            self._loading = None

    def _plain_numbers(self) -> dict[str, Any]:
        """Return the numbers for a checkpoint; mark the parameters in the open bundle."""
        state, _ = self._sync()
        is_open = self._has_pieces(state)
        for param, state_of_param in self.state.items():
            state_of_param["active"] = int(is_open and param in self._members.joined)
        return checkpoint.to_plain(state, evaluating=int(self._is_evaluating))

    def _check_loaded(self, state_dict: dict[str, Any]) -> None:
        """Raise an error if the state belongs to another optimizer or to other parameters."""
        groups = state_dict["param_groups"]
        keys = self.defaults.keys() - {"differentiable"}  # added by PyTorch when it loads
        checkpoint.check_keys(state_dict, type(self).__name__, keys)
        template = self._new_state(groups[0]["bundle_size"], len(groups))
        numbers = groups[0].get(checkpoint.NUMBERS)
        state = checkpoint.from_plain(template, numbers) if numbers else template
        _ = bool(numbers and numbers["evaluating"])
        if self._has_pieces(state) and not any(x.get("active") for x in state_dict["state"].values()):
            raise ValueError("state_dict must be complete, but the state of the parameters in its bundle is missing")
        saved = [(key, group) for group in groups for key in group["params"]]
        for index, ((key, group), param) in enumerate(zip(saved, self._all_params(), strict=False)):
            saved_state = state_dict["state"].get(key, {})
            for spec in self._specs(group, saved_state) if saved_state else ():
                checkpoint.check_tensor(spec, saved_state, param, index)

    def __getstate__(self) -> dict[str, Any]:
        _ = self.last_step
        copied = {name: getattr(self, name) for name in self._COPIED}
        first, *others = self.param_groups
        groups = [{**first, checkpoint.NUMBERS: self._plain_numbers()}, *others]
        return {**super().__getstate__(), **copied, "param_groups": groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("process_group", None)  # process groups cannot be copied
        self.__dict__.setdefault("_is_projected", True)
        if self.__dict__.get("_loading") is not None:
            checkpoint.copy_tensors(self, self._loading or {}, self._all_params())
        self._loading = None
        first = self.param_groups[0]
        numbers, size = first.pop(checkpoint.NUMBERS, None), first["bundle_size"]
        template = self._new_state(size, len(self.param_groups))
        last_step = state.get("_last_step")
        self._reset(size, checkpoint.from_plain(template, numbers) if numbers else template)
        self._last_step = last_step
        self._is_evaluating = bool(numbers and numbers["evaluating"])
        self._members.joined = {p for p, x in self.state.items() if x.pop("active", 0)}

    def __repr__(self) -> str:
        groups = self.param_groups
        self.param_groups = [{k: v for k, v in group.items() if k != checkpoint.NUMBERS} for group in groups]
        try:
            text = super().__repr__()
        finally:
            self.param_groups = groups
        return text.replace("(", "(\nSteps on the device, without syncs", 1) if self._is_on_device() else text


def check_loss(loss: Any) -> None:
    """Raise an error unless the loss is a real number or a real tensor with one element."""
    if isinstance(loss, Tensor) and loss.numel() != 1:
        raise ValueError(f"loss must have one element, got a tensor of shape {tuple(loss.shape)}")
    if not isinstance(loss, (Tensor, float, Real)) or (isinstance(loss, Tensor) and loss.is_complex()):
        raise ValueError(f"loss must be a number or a tensor with one element, got {loss!r}")


def _version_of(option: Any) -> Any:
    """Return a value that changes with the option, without reading tensors."""
    if isinstance(option, Tensor):
        return id(option), option._version
    return len(option) if isinstance(option, list) else option


def _check_and_remember(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    assert isinstance(optimizer, LossOptimizer)
    try:
        optimizer._check_loaded(state_dict)
    except (AttributeError, IndexError, KeyError, TypeError) as error:  # a damaged state may raise any of these
        name = type(optimizer).__name__
        raise ValueError(f"state_dict must be the state of a {name}, but it cannot be read: {error!r}") from error
    optimizer._loading = state_dict
    return state_dict


def _user_stack_level() -> int:
    """Return the stack level of the caller outside of borat and PyTorch, for warnings."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("borat", "torch"):
        level, frame = level + 1, frame.f_back
    return level
