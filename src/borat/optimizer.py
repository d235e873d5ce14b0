"""BORAT (Algorithm 2 of the paper), as a PyTorch optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from borat import points
from borat.bundle import Bundle
from borat.bundle_on_device import BundleOnDevice
from borat.checks import check_count, check_flag, check_lr, check_momentum, has_no_end
from borat.dual import Array
from borat.keeping import Constraint as Constraint
from borat.loss_optimizer import LossOptimizer
from borat.measure import Loss
from borat.parameters import Kept, Slot, View, partition
from borat.vectors import products

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_PRECISE = {torch.float64, torch.complex128}


class BORAT(LossOptimizer):
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
        capturable: never wait for the parameters' device in :meth:`step`. By default where that device is a GPU or the
            like; ``True`` does it on CPUs too, which ``torch.compile`` of a step needs, and ``False`` nowhere. Bundles
            of more than 8, sharded parameters and ``same_batch`` are not capturable.

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
        super().__init__(
            params,
            defaults,
            constraint=constraint,
            process_group=process_group,
            reduce_loss=reduce_loss,
            capturable=capturable,
        )

    @property
    def bundle_position(self) -> int:
        """The number of pieces in the open bundle, ``0`` to ``bundle_size - 2``."""
        return self._bundle.position

    @torch.no_grad()
    def flush(self) -> None:
        """Complete the open bundle with the pieces it has, for example at the end of training."""
        self._bundle.evaluating = False
        if self.bundle_position:
            self._complete(self._views(with_gradients=False), flush=True)
            if self._on_device is not None:
                self._on_device.send(self._bundle)

    # Algorithm 2

    def _take(self, loss: Loss, views: list[View]) -> bool:
        bundle, n = self._bundle, self._bundle.position
        for view in views:
            points.clear_rows(view, n)

        # 1. The gradient's row of the Gram matrix: earlier rows never change.
        def sums(view: View, *, precise: bool) -> Tensor | Array:
            return products(view.gradients, view.rows, view.part.matrices, n, view.backend, precise=precise)

        value, gram_row = self._measure(loss, views, sums, n + 1)
        if n == 0:
            lr = [float(group["lr"]) for group in self.param_groups]
            precise = not _PRECISE.isdisjoint(p.dtype for p in self._all_params())
            bundle.open(lr, self.param_groups[0]["lower_bound"], precise=precise)
        row = bundle.row(value, gram_row)
        if row is None:
            self._drop(value)
            return False
        if self.bundle_size > 1:  # alone, a linear piece has no bound
            self._warn_of_bound(value, bundle.lower_bound)

        # 2. and 3. The new offset needs no weights; the dual over all pieces and the bound.
        for view in views:
            points.join(view, n)
        bundle.add(value, row)

        # 4. The trial point for the next piece or, with the last one, the new centre.
        if bundle.is_full:
            self._complete(views)
            return False
        for view in views:
            points.to_trial(view, bundle.steps(view.group))
        return True

    def _complete(self, views: list[View], *, flush: bool = False) -> None:
        """Move the centre by the step that the bundle found."""
        self._last_step = self._bundle.description()
        try:
            for view in views:
                momentum = float(self.param_groups[view.group]["momentum"])
                points.move_centre(view, self._bundle.steps(view.group), momentum, flush=flush)
        finally:
            self._close(views)  # a bundle that stayed full would refuse all further pieces
        self._project(self._all_params())

    def _close(self, views: list[View]) -> None:
        for view in views:
            points.leave(view)
        self._bundle.close()

    def _stay_with_batch(self, closure: Callable[[], Loss], loss: Loss) -> None:
        is_open = True
        try:
            while is_open:
                previous, loss = loss, self._evaluate(closure)
                if loss is previous and isinstance(loss, Tensor):
                    raise ValueError(
                        "closure must compute the loss and its gradients anew for same_batch=True, "
                        "but it returned the same tensor again"
                    )
                is_open = self._take_batch(loss)
        except BaseException:
            views = self._views(with_gradients=False)
            self._to_result(views)  # or the next batch would go on with this one's pieces
            self._close(views)
            raise
        self.flush()  # a piece that was dropped ends the bundle: the same batch would give it again

    # The two points: the centre is the result, the trial point is where gradients are measured

    @torch.no_grad()
    def _to_result(self, views: list[View]) -> None:
        for view in views:
            points.to_centre(view)

    @torch.no_grad()
    def _from_result(self, views: list[View]) -> None:
        if views and self._is_on_device():  # by the same operations as before, for the same bits
            if self._on_device is None:
                self._enter_device(list(self._wanted_slots(with_gradients=False)))
            assert self._on_device is not None
            self._on_device.to_trial()
            return
        for view in views:
            points.to_trial(view, self._bundle.steps(view.group), replay=True)

    # State

    _on_device: BundleOnDevice | None

    @property
    def _bundle(self) -> Bundle:
        bundle = super()._bundle
        assert isinstance(bundle, Bundle)
        return bundle

    def _new_bundle(self, size: int, groups: int, numbers: Mapping[str, Any] | None) -> Bundle:
        return Bundle(size, groups, numbers)

    def _new_on_device(self, slots: list[Slot]) -> BundleOnDevice:
        position = self._bundle.position
        for part in partition(slots, by="velocity_scale"):
            view = part.view(with_gradients=False)
            points.clear_rows(view, position)
            points.join(view, position)
        return BundleOnDevice(slots, self._all_params(), self._bundle)

    def _kept(self, group: dict[str, Any], state: Mapping[str, Any]) -> Sequence[Kept]:
        return _kept(group["bundle_size"], bool(group["momentum"]) or "velocity" in state)

    def _is_part_of_the_bundle(self, state: Mapping[str, Any]) -> bool:
        return self._bundle.position > 0 and bool(state.get("active"))

    def _check_group(self, group: dict[str, Any]) -> None:
        check_lr(group["lr"], group["bundle_size"])
        check_momentum(group["momentum"])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, also in the middle of a bundle. It may have its own ``lr`` and ``momentum``."""
        if isinstance(param_group, dict):
            lr = param_group["lr"] = self.defaults["lr"] if "lr" not in param_group else param_group["lr"]
            param_group["lr"] = math.inf if lr is None else lr
            self._check_group({**self.defaults, **param_group})
            if any(has_no_end(param_group["lr"]) != has_no_end(group["lr"]) for group in self.param_groups):
                raise ValueError("lr must be None for all parameter groups or for none")
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict, also one taken within a bundle: then the model is put at that bundle's trial point.

        Nothing is shared with the state dict afterwards.

        Raises:
            ValueError: if it is not the state of such an optimizer on such parameters. Then nothing has changed.
        """
        super().load_state_dict(state_dict)
        if self._bundle.position and not self._bundle.evaluating:
            self._from_result(self._views(with_gradients=False))


@cache
def _kept(bundle_size: int, with_velocity: bool) -> tuple[Kept, ...]:
    """The last gradient of a bundle is still in ``grad`` when it is complete: N - 2 rows for N - 1 pieces."""
    rows = bundle_size - 2
    bundle = (Kept("centre", beside=("active", 0)), Kept("gradients", rows)) if rows > 0 else ()
    return (*bundle, Kept("velocity", beside=("velocity_scale", 0.0))) if with_velocity else bundle
