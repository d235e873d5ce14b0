"""What an optimizer keeps from one batch to the next, and how it is saved, loaded and copied.

Tensors live in the optimizer's state, as with any optimizer of PyTorch. The bundle's numbers live in an object of their
own and are written to the first parameter group, as plain numbers, whenever somebody asks for the state: PyTorch
neither casts nor shares what is in the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from borat import sharding
from borat.bundle import StepInfo
from borat.parameters import Extent, Kept, Part, Roster, Slot, View, partition

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Constraint = Callable[[list[Tensor]], object]

NUMBERS = "bundle"
"""Where the first parameter group has the bundle's numbers."""


class Numbers(Protocol):
    """The numbers of a bundle, whatever its kind."""

    dropped: int
    evaluating: bool

    @property
    def has_pieces(self) -> bool:
        """Whether it goes on with gradients that are in the optimizer's state."""

    def numbers(self) -> dict[str, Any]: ...

    def add_group(self) -> None: ...


class KeepingOptimizer(Optimizer):
    """An optimizer that keeps tensors for each parameter and a few numbers for all of them."""

    constraint: Constraint | None
    process_group: ProcessGroup | None
    reduce_loss: bool
    _numbers: Numbers
    _last_step: StepInfo | Callable[[], StepInfo] | None
    _warned: set[str]
    _slots: dict[Tensor, Slot]
    _roster: Roster
    _parts: list[Part]
    _loading: dict[str, Any] | None

    _COPIED: tuple[str, ...] = ("constraint", "reduce_loss", "_warned")
    """What a copy takes over besides state, groups and the last step."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self._slots = {}
        self._forget_parts()
        self._loading = None
        self._numbers = self._new_bundle(defaults["bundle_size"], 0, None)
        super().__init__(params, defaults)

    @property
    def last_step(self) -> StepInfo | None:
        """What the last completed update did; None before the first."""
        if callable(self._last_step):  # nobody has looked so far
            self._last_step = self._last_step()
        return self._last_step

    # What each optimizer says of itself

    def _new_bundle(self, size: int, groups: int, numbers: Mapping[str, Any] | None) -> Any:
        """The bundle's numbers: those of a checkpoint, or those before the first batch."""
        raise NotImplementedError

    def _kept(self, group: dict[str, Any], state: Mapping[str, Any]) -> Sequence[Kept]:
        """What is kept of a parameter of this group."""
        raise NotImplementedError

    def _is_part_of_the_bundle(self, state: Mapping[str, Any]) -> bool:
        """Whether a parameter takes part in the bundle, though it may have no gradient now."""
        raise NotImplementedError

    @property
    def _bundle(self) -> Numbers:
        return self._numbers

    # Parameters

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        param_group.pop(NUMBERS, None)  # of another optimizer, whose group this was
        super().add_param_group(param_group)
        self._bundle.add_group()

    def _all_params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _views(self, *, with_gradients: bool) -> list[View]:
        """The parameters that take part in the bundle and, if wanted, those that have a gradient now.

        Those that take part were all there the last time: where all that were there have a gradient, no others do.
        """
        if not with_gradients or not self._are_current(self._roster, self._params_with_gradients()):
            slots = list(self._wanted_slots(with_gradients))
            if slots != self._roster.slots:
                self._parts = partition(slots, by="velocity_scale")
            self._roster = self._new_roster(slots)
        if not with_gradients and any(part.is_sharded for part in self._parts):
            sharding.discard_gathered_copies()
        return [part.view(with_gradients=with_gradients) for part in self._parts]

    def _params_with_gradients(self) -> list[Tensor]:
        return [p for p in self._all_params() if p.grad is not None]

    def _new_roster(self, slots: list[Slot]) -> Roster:
        return Roster(slots, self._extents())

    def _are_current(self, roster: Roster, params: list[Tensor]) -> bool:
        return roster.is_for(params, self.state, self._extents())

    def _extents(self) -> list[Extent]:
        return [(len(group["params"]), self._kept(group, {})) for group in self.param_groups]

    def _forget_parts(self) -> None:
        self._roster, self._parts = Roster([], []), []

    def _wanted_slots(self, with_gradients: bool) -> Iterator[Slot]:
        for index, group in enumerate(self.param_groups):
            for p in group["params"]:
                has_gradient = with_gradients and p.grad is not None
                if has_gradient or (p in self.state and self._is_part_of_the_bundle(self.state[p])):
                    yield self._slot(p, index)

    def _slot(self, param: Tensor, group: int) -> Slot:
        state = self.state[param]
        kept = self._kept(self.param_groups[group], state)
        slot = self._slots.get(param)
        if slot is None or not slot.is_current(state, group, kept):
            slot = self._slots[param] = Slot(param, group, state, kept)
        return slot

    # Checkpoints and copies

    def state_dict(self) -> dict[str, Any]:
        """The state, exact at any time, also within a bundle."""
        hook = self.register_state_dict_pre_hook(lambda _: self._write_numbers())  # the last one: others may train
        try:
            return super().state_dict()
        finally:
            hook.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict, also one taken within a bundle. Nothing is shared with it afterwards.

        Raises:
            ValueError: if it is not the state of such an optimizer on such parameters. Then nothing has changed.
        """
        if not isinstance(state_dict, Mapping):
            raise ValueError(f"state_dict must be a dict, as state_dict() gives it, got a {type(state_dict).__name__}")
        hook = self.register_load_state_dict_pre_hook(_check_and_remember)  # as the last one, it sees what is loaded
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
            self._loading = None

    def _write_numbers(self) -> None:
        self.param_groups[0][NUMBERS] = self._bundle.numbers()

    def _check_loaded(self, state_dict: dict[str, Any]) -> None:
        """Refuse a state that is not one of this optimizer's, or not for its parameters."""
        name, groups = type(self).__name__, state_dict["param_groups"]
        for key in self.defaults.keys() - {"differentiable"}:  # which PyTorch adds when it loads
            if not all(key in group for group in groups):
                raise ValueError(f"state_dict must be the state of a {name}, but its parameter groups have no {key!r}")
        bundle = self._new_bundle(groups[0]["bundle_size"], len(groups), groups[0].get(NUMBERS))
        if bundle.has_pieces and not any(state.get("active") for state in state_dict["state"].values()):
            raise ValueError(
                "state_dict must be whole, but the parameters' state is missing that its bundle goes on with"
            )
        saved = [(key, group) for group in groups for key in group["params"]]
        for index, ((key, group), param) in enumerate(zip(saved, self._all_params(), strict=False)):
            state = state_dict["state"].get(key, {})
            for kept in self._kept(group, state) if state else ():
                _check_kept(kept, state, param, index)

    def __getstate__(self) -> dict[str, Any]:
        self._write_numbers()
        copied = {name: getattr(self, name) for name in self._COPIED}
        return {**super().__getstate__(), **copied, "_last_step": self.last_step}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("process_group", None)  # groups of processes cannot be copied
        loaded = self.__dict__.get("_loading")
        if loaded is not None:
            self._own(loaded)
        self._loading = None
        self._slots = {}
        self._forget_parts()
        first = self.param_groups[0]
        self._numbers = self._new_bundle(first["bundle_size"], len(self.param_groups), first.get(NUMBERS))

    def _own(self, loaded: dict[str, Any]) -> None:
        """Copy the tensors of the state dict itself: PyTorch casts them to the parameter's dtype, and shares others."""
        saved = [key for group in loaded["param_groups"] for key in group["params"]]
        for key, param in zip(saved, self._all_params(), strict=True):
            for name, value in loaded["state"].get(key, {}).items():
                if isinstance(value, Tensor):
                    self.state[param][name] = value.detach().to(param.device, copy=True)

    def __repr__(self) -> str:
        groups = self.param_groups
        self.param_groups = [{k: v for k, v in group.items() if k != NUMBERS} for group in groups]
        try:
            return super().__repr__()
        finally:
            self.param_groups = groups


def _check_and_remember(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    assert isinstance(optimizer, KeepingOptimizer)
    try:
        state_dict = _with_numbers_in_the_groups(state_dict)
        optimizer._check_loaded(state_dict)
    except (AttributeError, IndexError, KeyError, TypeError) as error:  # hardly one that a damaged state does not raise
        name = type(optimizer).__name__
        raise ValueError(f"state_dict must be the state of a {name}, but it cannot be read: {error!r}") from error
    optimizer._loading = state_dict
    return state_dict


def _check_kept(kept: Kept, state: Mapping[str, Any], param: Tensor, index: int) -> None:
    """Refuse what was kept of a parameter, if it is not there or not for this parameter."""
    tensor, shape = state.get(kept.key), kept.shape(param)
    if tensor is None and kept.beside is not None and kept.beside[0] not in state:  # not kept yet, as it may be
        return
    if not isinstance(tensor, Tensor) or tuple(tensor.shape) != shape:
        found = tuple(tensor.shape) if isinstance(tensor, Tensor) else tensor
        raise ValueError(
            f"state_dict must fit the parameters, but {kept.key!r} of parameter {index} must have the shape {shape}, "
            f"got {found}"
        )


def _with_numbers_in_the_groups(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Up to version 0.1.0 the numbers were tensors in the state of one parameter."""
    if not any(NUMBERS in state for state in state_dict["state"].values()):
        return state_dict
    old = next(state[NUMBERS] for state in state_dict["state"].values() if NUMBERS in state)
    numbers = {k: v.tolist() if isinstance(v, Tensor) else v for k, v in old.items()}
    first, *others = state_dict["param_groups"]
    states = {param: {k: v for k, v in state.items() if k != NUMBERS} for param, state in state_dict["state"].items()}
    return {**state_dict, "state": states, "param_groups": [{**first, NUMBERS: numbers}, *others]}
