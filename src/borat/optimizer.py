"""BORAT and ALI-G as PyTorch optimizers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from borat import sharding
from borat.bundle import Bundle, Ledger, StepInfo, new_ledger
from borat.checks import check_count, check_flag, check_loss, check_lr, check_momentum, is_number
from borat.measure import measure
from borat.slots import Part, Slot, partition

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Loss = Tensor | float
Constraint = Callable[[list[Tensor]], object]

_WAYS_TO_PASS_THE_LOSS = (
    "call step(loss=loss) after loss.backward(), step(closure) with a closure that computes the loss and its "
    "gradients, or step(lambda: loss); where a trainer calls step(), call observe(loss) before it does"
)


class BORAT(Optimizer):
    r"""Bundle Optimisation for Robust and Accurate Training (Paren, Berrada, Poudel and Kumar, JMLR 2022).

    Each update minimises a proximal model of the loss around the current point :math:`w_t`, in which the loss is the
    maximum of :math:`N - 1` linear pieces, measured on :math:`N - 1` batches, and of a known lower bound :math:`B`:

    .. math::
        w_{t+1} = \Pi_\Omega \Big( \arg\min_w \frac{1}{2\eta} \|w - w_t\|^2
            + \max\big\{ \max_n \, \langle g_n, w - w_t \rangle + b_n, \; B \big\} \Big)

    The first piece is measured at :math:`w_t`, each further one at the minimiser of the model so far. So every call of
    :meth:`step` brings one batch's loss and gradients and moves the model, and every :math:`(N-1)`-th call completes an
    update. In between, the model is at a trial point; :meth:`eval` puts it at the centre :math:`w_t`. An update starts
    from that centre: to change the weights from outside in the middle of a bundle, :meth:`flush` it first.

    Args:
        params: parameters or parameter groups; each group may have its own ``lr`` and ``momentum``.
        lr: the maximal learning rate :math:`\eta`. It needs no schedule; where one writes it, a change takes effect at
            the next bundle. ``None`` takes the cap away (only for ``bundle_size=2``).
        bundle_size: the number of pieces :math:`N`, the bound included. 1 is SGD, 2 is ALI-G, 3 and 5 are the paper's
            BORAT3 and BORAT5. More pieces are more robust to the choice of ``lr``, and need more memory.
        momentum: Nesterov momentum, in [0, 1).
        lower_bound: a value that no batch's loss falls below.
        constraint: projects the parameters onto a feasible set :math:`\Omega`: one of :mod:`borat.constraints`, or any
            callable that changes a list of parameters in place. It gets all parameters, after each update and once
            at construction.
        same_batch: let ``step(closure)`` collect all pieces of an update on the closure's batch, as in the paper's
            theory, instead of one. In practice a fresh batch for each piece trains better.
        process_group: the processes that train together, where ``torch.distributed`` is initialised; all by default.
        reduce_loss: average the loss over these processes, as DDP and FSDP average the gradients, so that all take the
            same step. Switch it off for a loss that is averaged already, or for processes that train apart.

    Example:
        >>> model = torch.nn.Linear(4, 1)
        >>> opt = BORAT(model.parameters(), lr=1.0, bundle_size=3)
        >>> for _ in range(2):
        ...     opt.zero_grad()
        ...     loss = model(torch.randn(8, 4)).square().mean()
        ...     loss.backward()
        ...     _ = opt.step(loss=loss)
        >>> opt.last_step.kind in {"SGD", "ESGD", "ZERO", "ALIG", "EALIG", "MAX2", "MAX3"}
        True
    """

    constraint: Constraint | None
    same_batch: bool
    process_group: ProcessGroup | None
    reduce_loss: bool
    last_step: StepInfo | None
    """What the last completed update did; None before the first."""
    _warned: set[str]
    _observed: Tensor | float | None
    _bundle_cache: Bundle | None
    _home: Tensor | None
    _slots: dict[Tensor, Slot]
    _slots_in_parts: list[Slot]
    _parts: list[Part]

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | None = 0.1,
        bundle_size: int = 3,
        *,
        momentum: float = 0.9,
        lower_bound: float = 0.0,
        constraint: Constraint | None = None,
        same_batch: bool = False,
        process_group: ProcessGroup | None = None,
        reduce_loss: bool = True,
    ) -> None:
        check_count("bundle_size", bundle_size)
        check_flag("same_batch", same_batch)
        check_flag("reduce_loss", reduce_loss)
        if not is_number(lower_bound) or math.isinf(lower_bound):
            raise ValueError(f"lower_bound must be a finite number, got {lower_bound!r}")
        if constraint is not None and not callable(constraint):
            raise ValueError(f"constraint must be None or a callable on a list of parameters, got {constraint!r}")
        self.constraint = constraint
        self.same_batch = same_batch
        self.process_group = process_group
        self.reduce_loss = reduce_loss
        self.last_step = None
        self._warned = set()
        self._observed = None
        self._forget_views()
        defaults = {
            "lr": math.inf if lr is None else lr,
            "bundle_size": bundle_size,
            "momentum": momentum,
            "lower_bound": float(lower_bound),
        }
        super().__init__(params, defaults)
        self._project()

    # The public face

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Loss] | None = None, *, loss: Loss | None = None) -> Loss | None:
        """Add one batch to the bundle and move the model; every ``bundle_size - 1``-th call completes an update.

        Args:
            closure: returns the loss, and may compute it and its gradients anew.
            loss: the loss whose gradients are in the parameters' ``grad``. Without either, and in place of the
                closure's, it is the loss that was told to :meth:`observe`.

        Returns:
            The loss.
        """
        if closure is not None and loss is not None:
            raise ValueError("step takes either a closure or the loss, got both")
        if closure is not None and not callable(closure):
            raise ValueError(f"closure must be callable, got a {type(closure).__name__}: {_WAYS_TO_PASS_THE_LOSS}")
        if closure is None:
            told = self._observed if loss is None else loss
            if told is None:
                self._initialise_state()
                return None
            self._check_training()
            self._observed = None
            self._add_piece(told)
            return told
        self._check_training()
        loss = self._evaluate(closure)
        if loss is None and self._has_no_gradients():  # how a closure skips a batch
            self._add_piece(math.nan)
            return None
        if self._add_piece(loss) and self.same_batch:
            self._collect_on_same_batch(closure, loss)
        return loss

    def observe(self, loss: Loss) -> None:
        """Tell the loss of the next :meth:`step`, where a trainer calls that without it.

        With gradient accumulation, tell the loss of each micro-batch as it is differentiated, that is divided by
        their number: what is told before a step adds up, as the gradients do.
        """
        check_loss(loss)
        value = sharding.whole(loss.detach()).reshape(()).clone() if isinstance(loss, Tensor) else loss
        self._observed = value if self._observed is None else self._observed + value

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and with them the loss that was told to :meth:`observe`."""
        super().zero_grad(set_to_none)
        self._observed = None

    @torch.no_grad()
    def eval(self) -> None:
        """Put the model at the centre, to evaluate or save it; :meth:`train` goes back. At any time, and repeatedly."""
        if not self._bundle.ledger["evaluating"]:
            for part in self._look_at_parameters(with_gradients=False):
                part.to_centre()
            self._bundle.ledger["evaluating"] = 1

    def train(self) -> None:
        """Put the model back at the trial point of the open bundle, bit for bit."""
        if self._bundle.ledger["evaluating"]:
            self._return_to_trial_point()
            self._bundle.ledger["evaluating"] = 0

    @torch.no_grad()
    def flush(self) -> None:
        """Complete the open bundle with the pieces it has, for example at the end of training."""
        self._bundle.ledger["evaluating"] = 0
        if self.bundle_position:
            self._complete(self._look_at_parameters(with_gradients=False), flush=True)

    @property
    def bundle_position(self) -> int:
        """The number of pieces in the open bundle, ``0`` to ``bundle_size - 2``."""
        return int(self._bundle.ledger["position"])

    @property
    def bundle_size(self) -> int:
        """The number of pieces of a full bundle, the bound included."""
        return int(self.param_groups[0]["bundle_size"])

    @property
    def dropped_batches(self) -> int:
        """How many batches were dropped because their loss or gradients were not finite."""
        return int(self._bundle.ledger["dropped"])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, also in the middle of a bundle. It may have its own ``lr`` and ``momentum``."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, got {type(param_group).__name__}")
        if param_group.get("lr", 0.0) is None:
            param_group["lr"] = math.inf
        reference = self.param_groups[0] if self.param_groups else self.defaults
        for key in ("bundle_size", "lower_bound"):
            if param_group.setdefault(key, reference[key]) != reference[key]:
                raise ValueError(f"{key} must be the same for all parameter groups, got {param_group[key]!r}")
        merged = {**self.defaults, **param_group}
        check_lr(merged["lr"], reference["bundle_size"])
        check_momentum(merged["momentum"])
        if any(math.isinf(merged["lr"]) != math.isinf(group["lr"]) for group in self.param_groups):
            raise ValueError("lr must be None for all parameter groups or for none")
        super().add_param_group(param_group)
        if self._bundle_cache is not None or self._find_ledger() is not None:
            self._bundle.add_group()

    @torch.no_grad()
    def _return_to_trial_point(self) -> None:
        for part in self._look_at_parameters(with_gradients=False):
            part.to_trial(self._bundle.steps(part.group), replay=True)

    # One piece

    @torch.no_grad()
    def _add_piece(self, loss: Loss) -> bool:
        """Add the batch to the bundle; whether it was taken and the bundle is still open."""
        check_loss(loss)
        if self._has_no_gradients():
            if not self._is_one_of_several():
                return False
            loss = math.nan  # the others wait for this process, and will drop the batch as it does
        parts = self._look_at_parameters(with_gradients=True)
        try:
            return self._add_piece_of(loss, parts)
        finally:
            for part in parts:
                part.gradients = []  # or they would outlive zero_grad()

    def _add_piece_of(self, loss: Loss, parts: list[Part]) -> bool:
        self._check_groups()
        bundle = self._bundle
        self._keep_ledger()
        for part in parts:
            part.clear_rows(bundle.position)
        value, products = measure(
            loss,
            parts,
            len(self.param_groups),
            bundle.position,
            self.process_group,
            device=self.param_groups[0]["params"][0].device,
            reduce_loss=self.reduce_loss,
        )
        if bundle.position == 0:
            bundle.open([float(group["lr"]) for group in self.param_groups], self.param_groups[0]["lower_bound"])
        if not (math.isfinite(value) and np.isfinite(products).all() and bundle.can_hold(products)):
            self._drop(value)
            return False
        if value < bundle.ledger["lower_bound"] and self.bundle_size > 1:  # alone, a linear piece has no bound
            self._warn_once(
                "lower_bound",
                f"the loss {value:g} is below lower_bound={bundle.ledger['lower_bound']:g}. Such a batch makes no step "
                "towards a smaller loss, so that training may stall: pass a lower bound that holds.",
            )
        for part in parts:
            part.join(bundle.position)
        bundle.add(value, products)
        if bundle.is_full:
            self._complete(parts)
            return False
        for part in parts:
            part.to_trial(bundle.steps(part.group))
        return True

    def _complete(self, parts: list[Part], *, flush: bool = False) -> None:
        """Move the centre by the step that the bundle found."""
        bundle = self._bundle
        self.last_step = bundle.describe()
        try:
            for part in parts:
                momentum = float(self.param_groups[part.group]["momentum"])
                part.move_centre(bundle.steps(part.group), momentum, flush=flush)
        finally:
            self._close(parts)  # a bundle that stayed full would refuse all further pieces
        self._project()

    def _close(self, parts: list[Part]) -> None:
        for part in parts:
            part.leave()
        self._bundle.close()

    def _collect_on_same_batch(self, closure: Callable[[], Loss], loss: Loss) -> None:
        """Evaluate the closure until the bundle is complete."""
        is_open = True
        try:
            while is_open:
                previous, loss = loss, self._evaluate(closure)
                if loss is previous and isinstance(loss, Tensor):
                    raise ValueError(
                        "closure must compute the loss and its gradients anew for same_batch=True, "
                        "but it returned the same tensor again"
                    )
                is_open = self._add_piece(loss)
        except BaseException:
            self._abandon()  # or the next batch would go on with this one's pieces
            raise
        self.flush()  # a piece that was dropped ends the bundle: the same batch would give it again

    @torch.no_grad()
    def _abandon(self) -> None:
        """Forget the open bundle and go back to its centre."""
        parts = self._look_at_parameters(with_gradients=False)
        for part in parts:
            part.to_centre()
        self._close(parts)

    def _evaluate(self, closure: Callable[[], Loss]) -> Loss:
        with torch.enable_grad():
            loss = closure()
        observed, self._observed = self._observed, None
        return loss if observed is None else observed

    def _drop(self, loss: float) -> None:
        self._bundle.ledger["dropped"] += 1
        what = (
            f"the loss {loss:g} is not finite" if not math.isfinite(loss) else "a gradient is not finite or too large"
        )
        self._warn_once("dropped", f"{what}: the batch is dropped, as are others like it (see dropped_batches).")

    def _warn_once(self, subject: str, message: str) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            warnings.warn(f"{type(self).__name__}: {message}", stacklevel=5)

    def _check_training(self) -> None:
        if self._bundle.ledger["evaluating"]:
            raise RuntimeError("the model is at the centre for evaluation: call the optimizer's train() before step()")

    def _check_groups(self) -> None:
        """Schedules write learning rates and momenta at any time."""
        for group in self.param_groups:
            check_lr(group["lr"], self.bundle_size)
            check_momentum(group["momentum"])

    def _project(self) -> None:
        if self.constraint is not None:
            with torch.no_grad():
                self.constraint([p for group in self.param_groups for p in group["params"]])

    def _is_one_of_several(self) -> bool:
        """Whether other processes wait for this one's numbers."""
        return self.reduce_loss and sharding.world_size(self.process_group) > 1

    def _has_no_gradients(self) -> bool:
        return all(p.grad is None for group in self.param_groups for p in group["params"])

    # State

    def _initialise_state(self) -> None:
        """Allocate the state without a batch.

        Checkpointing tools call ``step()`` with zero gradients and zero learning rates to that end, see
        ``torch.distributed.checkpoint.state_dict``; from anyone else it is a mistake.
        """
        params = [p for group in self.param_groups for p in group["params"]]
        if any(float(group["lr"]) for group in self.param_groups) or any(
            p.grad is not None and p.grad.to_dense().count_nonzero() for p in params
        ):
            raise ValueError(f"step needs the loss of the batch: {_WAYS_TO_PASS_THE_LOSS}")
        self._keep_ledger()
        for part in self._look_at_parameters(with_gradients=True):
            part.gradients = []

    @property
    def _bundle(self) -> Bundle:
        """The open bundle, made anew where somebody has replaced its numbers in the state."""
        bundle = self._bundle_cache
        if bundle is None or (self._home is not None and self.state[self._home].get("bundle") is not bundle.ledger):
            self._home = self._find_ledger()
            ledger = None if self._home is None else self.state[self._home]["bundle"]
            ledger = ledger or new_ledger(self.bundle_size, len(self.param_groups))
            bundle = self._bundle_cache = Bundle(ledger, self.bundle_size)
        return bundle

    def _find_ledger(self) -> Tensor | None:
        """The parameter whose state holds the numbers of the bundle."""
        return next((p for p, state in self.state.items() if "bundle" in state), None)

    def _keep_ledger(self) -> None:
        """Make the numbers of the bundle part of the state, which is empty before the first batch."""
        ledger = self._bundle.ledger
        if self._home is None:
            params = [p for group in self.param_groups for p in group["params"]]
            self._home = next((p for p in params if p.requires_grad), params[0])
            self.state[self._home]["bundle"] = ledger

    def _look_at_parameters(self, *, with_gradients: bool) -> list[Part]:
        """The parameters of the open bundle and, if wanted, those that have a gradient now."""
        is_open = self._bundle.position > 0
        slots = [
            self._slot(p, index)
            for index, group in enumerate(self.param_groups)
            for p in group["params"]
            if (p.grad is not None and with_gradients) or (is_open and self.state.get(p, {}).get("active"))
        ]
        if slots != self._slots_in_parts:
            self._slots_in_parts, self._parts = slots, partition(slots)
        for part in self._parts:
            part.look(at_gradients=with_gradients)
        if not with_gradients and any(part.is_sharded for part in self._parts):
            sharding.discard_gathered_copies()
        return self._parts

    def _slot(self, param: Tensor, group: int) -> Slot:
        slot = self._slots.get(param)
        if slot is None or not slot.is_current(self.state[param]):
            slot = self._slots[param] = Slot(param, group, self.state[param], self.bundle_size)
            if self.param_groups[group]["momentum"]:
                slot.velocity  # noqa: B018 - made with the rest of the state, so that all checkpoints have the same keys
        return slot

    def _forget_views(self) -> None:
        """Drop what was derived from the state, because the state is replaced."""
        self._bundle_cache = None
        self._home = None
        self._slots = {}
        self._slots_in_parts = []
        self._parts = []

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict, also one taken within a bundle: then the model is put at that bundle's trial point.

        Nothing is shared with the state dict afterwards.
        """
        hook = self.register_load_state_dict_pre_hook(_remember_ledger)  # as the last one, it sees what will be loaded
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        if not self._bundle.ledger["evaluating"]:
            self._return_to_trial_point()

    def __getstate__(self) -> dict[str, Any]:
        own = ("constraint", "same_batch", "reduce_loss", "last_step", "_warned")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("process_group", None)  # groups of processes cannot be copied
        self.__dict__.setdefault("_observed", None)
        if "_loaded_ledger" in self.__dict__:
            self._own_the_state(self.__dict__.pop("_loaded_ledger"))
        self._forget_views()

    def _own_the_state(self, ledger: Ledger) -> None:
        """Copy what was loaded; the ledger from the state dict itself, as torch casts it to a parameter's dtype."""
        for state in self.state.values():
            for key, value in state.items():
                if key == "bundle":
                    state[key] = {k: v.cpu().clone() if isinstance(v, Tensor) else v for k, v in ledger.items()}
                elif isinstance(value, Tensor):
                    state[key] = value.clone()


class ALIG(BORAT):
    r"""Adaptive Learning-rates for Interpolation with Gradients: :class:`BORAT` with a bundle of two.

    A stochastic Polyak step with a cap: :math:`w \leftarrow w - \min\{\eta, (\ell - B) / \|g\|^2\} \, g`.

    Args:
        params: see :class:`BORAT`.
        lr: the cap :math:`\eta`; ``None`` for a step without one.
        momentum: see :class:`BORAT`.
        lower_bound: see :class:`BORAT`.
        constraint: see :class:`BORAT`.
        process_group: see :class:`BORAT`.
        reduce_loss: see :class:`BORAT`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | None = 0.1,
        *,
        momentum: float = 0.9,
        lower_bound: float = 0.0,
        constraint: Constraint | None = None,
        process_group: ProcessGroup | None = None,
        reduce_loss: bool = True,
    ) -> None:
        super().__init__(
            params,
            lr,
            2,
            momentum=momentum,
            lower_bound=lower_bound,
            constraint=constraint,
            process_group=process_group,
            reduce_loss=reduce_loss,
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of an ALI-G optimizer."""
        for group in state_dict["param_groups"]:
            if group.get("bundle_size", 2) != 2:
                raise ValueError(f"bundle_size must be 2 for ALIG, got a state with {group['bundle_size']}")
        super().load_state_dict(state_dict)


def _remember_ledger(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    ledgers = (state["bundle"] for state in state_dict["state"].values() if "bundle" in state)
    optimizer.__dict__["_loaded_ledger"] = next(ledgers, {})
