"""BORAT (Algorithm 2 of the paper) and its special case ALI-G, as PyTorch optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from borat._checks import check_count, check_flag, check_momentum
from borat._numbers.bundle import Bundle, add_group, add_piece, coefficients_of, describe_bundle, new_bundle
from borat._numbers.step_info import StepInfo
from borat._optim.base import Constraint, LossOptimizer
from borat._optim.checks import check_lr, is_uncapped
from borat._state.slots import Batch, Part, Slot, TensorSpec
from borat._state.store import Loss

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class BORAT(LossOptimizer):
    r"""Bundle Optimisation for Robust and Accurate Training (Paren, Berrada, Poudel and Kumar, JMLR 2022).

    Each update minimises a proximal model of the loss around the current point :math:`w_t`, in which the loss is the
    maximum of :math:`N - 1` linear pieces, measured on :math:`N - 1` batches, and of a known lower bound :math:`B`:

    .. math::
        w_{t+1} = \Pi_\Omega \Big( \arg\min_w \frac{1}{2\eta} \|w - w_t\|^2
            + \max\big\{ \max_n \, \langle g_n, w - w_t \rangle + b_n, \; B \big\} \Big)

    The first piece is measured at :math:`w_t`, each further one at the minimiser of the model so far. Every call of
    :meth:`step` adds a piece from the loss and the gradients of one batch and moves the model; every
    :math:`(N-1)`-th call completes an update. In between, the model is at a trial point, and :meth:`eval` moves it to
    the centre :math:`w_t`. Updates start from the centre, so call :meth:`flush` before you change the weights yourself
    within a bundle.

    Args:
        params: parameters or parameter groups; each group may have its own ``lr`` and ``momentum``.
        lr: the maximal learning rate :math:`\eta`. It needs no schedule; a change takes effect at the next bundle.
            ``None`` removes the cap (only for ``bundle_size=2``).
        bundle_size: the number of pieces :math:`N`, the bound included. 1 is SGD, 2 is ALI-G, 3 and 5 are the paper's
            BORAT3 and BORAT5. Larger bundles are more robust to the choice of ``lr`` and need more memory.
        momentum: Nesterov momentum, in [0, 1).
        lower_bound: a value that no batch's loss falls below.
        constraint: projection onto a feasible set :math:`\Omega`: one of :mod:`borat.constraints`, or any callable
            that changes a list of parameters in place. It is called with all parameters, at construction and after
            each update.
        same_batch: if True, ``step(closure)`` measures all pieces of an update on the closure's batch, as in the
            paper's theory. In practice a fresh batch for each piece trains better.
        process_group: the processes that train together if ``torch.distributed`` is initialised; all by default.
        reduce_loss: average the loss over these processes, as DDP and FSDP average the gradients, so that all take the
            same step. Set it to False if the loss is already averaged, or if the processes train separate models.
        capturable: run :meth:`step` on the parameters' device, without device syncs. By default (None) on GPUs and
            other accelerators; ``True`` includes CPUs, which ``torch.compile`` of a step needs; ``False`` turns it
            off. Bundles of more than 8, sharded parameters and ``same_batch`` are not capturable.

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

    same_batch: bool
    _COPIED = (*LossOptimizer._COPIED, "same_batch")

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
        capturable: bool | None = None,
    ) -> None:
        check_count("bundle_size", bundle_size)
        check_flag("same_batch", same_batch)
        self.same_batch = same_batch
        defaults = {
            "lr": math.inf if lr is None else lr,
            "bundle_size": bundle_size,
            "momentum": momentum,
            "lower_bound": lower_bound,
        }
        super().__init__(params, defaults, constraint, process_group, reduce_loss, capturable)

    @property
    def bundle_position(self) -> int:
        """Number of pieces in the open bundle, ``0`` to ``bundle_size - 2``. Syncs like :attr:`last_step`."""
        return int(self._sync()[0].position)

    @torch.no_grad()
    def flush(self) -> None:
        """Complete the open bundle with the pieces it has."""
        parts = self._find_parts()
        self._is_evaluating = False
        self._store.move_to(None)
        bundle = self._store.state
        if bundle.position:
            self._store.state = bundle._replace(position=0, updates=bundle.updates + 1)
            self._store.info = bundle
            batch = [(part, part.load(with_gradients=False)) for part in parts]
            self._move(batch, coefficients_of(bundle), bundle.position - 1, ok=True, completes=True)

    # Algorithm 2

    def _update(self, loss: Loss, batch: Batch) -> None:
        store, groups = self._store, self.param_groups
        n, pieces = store.state.position, max(groups[0]["bundle_size"] - 1, 1)
        is_capped = self._is_capped
        rates = [group["lr"] if is_capped else 1.0 for group in groups]
        bound, lr = store.convert(groups[0]["lower_bound"], *rates, scalars=1)

        # 1. The row of the Gram matrix.
        shape = len(groups), pieces
        loss, products = store.measure(loss, batch, ("gram_row", n), shape, self.process_group, self.reduce_loss)

        # 2. and 3. The offset, and the dual over all pieces and the bound.
        largest = min([math.inf, *[part.largest for part, _ in batch]])
        step = store.update(add_piece, loss, products, bound, lr, is_capped=is_capped, largest=largest)

        # 4. The trial point for the next piece or, with the last one, the new centre.
        self._move(batch, step.coefficients, step.row, ok=step.ok, completes=step.completes)

    def _move(self, batch: Batch, coefficients: Any, row: Any, *, ok: Any, completes: Any) -> None:
        by_group = list(coefficients)
        for part, vectors in batch:
            momentum = float(self.param_groups[part.group]["momentum"])
            vectors.move(by_group[part.group], row, ok=ok, completes=completes, momentum=momentum)
        self._project(self._all_params(), where=completes)

    def _complete_on_batch(self, closure: Callable[[], Loss], loss: Loss) -> None:
        try:
            dropped = self.dropped_batches
            while self.bundle_position and self.dropped_batches == dropped:
                previous, loss = loss, self._call_closure(closure)
                if loss is previous and isinstance(loss, Tensor):
                    raise ValueError(
                        "closure must compute a new loss and its gradients at each call for same_batch=True, "
                        "got the same tensor again"
                    )
                self._take_batch(loss)
        except BaseException:
            self._to_result(self._find_parts())  # discard the pieces of this batch
            self._store.state = self._store.state._replace(position=0)
            raise
        self.flush()  # a dropped piece ends the bundle: the batch would be dropped again

    # The two points: the centre is the result, the trial point is where gradients are measured

    @torch.no_grad()
    def _to_result(self, parts: list[Part]) -> None:
        for part in parts:
            torch._foreach_copy_(part.weights(), part.kept["centre"])

    @torch.no_grad()
    def _from_result(self, parts: list[Part]) -> None:
        bundle: Bundle = self._sync()[0]
        coefficients = coefficients_of(bundle)
        for part in parts:
            vectors = part.load(with_gradients=False)
            vectors.move(coefficients[part.group], bundle.position - 1, ok=True, completes=False, momentum=0.0)

    # State

    @property
    def _is_capped(self) -> bool:
        lr = self.param_groups[0]["lr"]
        return isinstance(lr, Tensor) or lr < math.inf

    def _new_state(self, bundle_size: int, groups: int) -> Bundle:
        return new_bundle(bundle_size, groups)

    def _with_one_more_group(self, state: Bundle) -> Bundle:
        return add_group(state)

    def _has_pieces(self, state: Bundle) -> bool:
        return bool(state.position > 0)

    def _describe(self, info: Bundle) -> StepInfo:
        return describe_bundle(info, is_capped=self._is_capped)

    def _join(self, slots: list[Slot]) -> None:
        """Add parameters with zero gradients, because the pieces so far do not depend on them."""
        if self._members.joined and self._sync()[0].position:
            for slot in slots:
                slot.tensors["gradients"].zero_()
                slot.tensors["centre"].copy_(slot.weights)

    def _uses_bound(self) -> bool:
        return self.bundle_size > 1  # SGD has no bound

    def _specs(self, group: Mapping[str, Any], state: Mapping[str, Any]) -> Sequence[TensorSpec]:
        specs = []
        if group["bundle_size"] > 2:  # the last of the N - 1 gradients is still in ``grad``
            specs = [TensorSpec("centre"), TensorSpec("gradients", rows=group["bundle_size"] - 2)]
        return [*specs, TensorSpec("velocity")] if group["momentum"] or "velocity" in state else specs

    def _check_group(self, group: Mapping[str, Any]) -> None:
        check_lr(group["lr"], group["bundle_size"])
        check_momentum(group["momentum"])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, also within a bundle. It may have its own ``lr`` and ``momentum``."""
        if isinstance(param_group, dict):
            lr = param_group["lr"] = self.defaults["lr"] if "lr" not in param_group else param_group["lr"]
            param_group["lr"] = math.inf if lr is None else lr
            self._check_group({**self.defaults, **param_group})
            if any(is_uncapped(param_group["lr"]) != is_uncapped(group["lr"]) for group in self.param_groups):
                raise ValueError("lr must be None for all parameter groups or for none")
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict. If it was taken within a bundle, the model moves to the trial point of that bundle.

        The tensors of the state dict are copied.

        Raises:
            ValueError: if it does not fit this optimizer and its parameters. The optimizer is then unchanged.
        """
        super().load_state_dict(state_dict)
        if self.bundle_position and not self._is_evaluating:
            self._from_result(self._find_parts())


class ALIG(BORAT):
    r"""Adaptive Learning-rates for Interpolation with Gradients: :class:`BORAT` with a bundle of two.

    Its step is a stochastic Polyak step with a cap:
    :math:`w \leftarrow w - \min\{\eta, (\ell - B) / \|g\|^2\} \, g`.

    Args:
        lr: the cap :math:`\eta`; ``None`` removes it.

    The other arguments are those of :class:`BORAT`.
    """

    def __init__(
        self, params: ParamsT, lr: float | Tensor | None = 0.1, *, momentum: float = 0.9, **options: Any
    ) -> None:
        super().__init__(params, lr, bundle_size=2, momentum=momentum, **options)

    def _check_loaded(self, state_dict: dict[str, Any]) -> None:
        super()._check_loaded(state_dict)
        for group in state_dict["param_groups"]:
            if group["bundle_size"] != 2:
                raise ValueError(f"bundle_size must be 2 for ALIG, got a state with {group['bundle_size']}")
