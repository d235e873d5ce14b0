"""FreeBORAT: a bundle that rolls with every batch, in Adam's metric, and needs no learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from borat import batchnorm, metric
from borat.checks import check_betas, check_count, check_finite_lr, check_not_negative, check_positive, check_share
from borat.dual import Array
from borat.keeping import Constraint
from borat.loss_optimizer import LossOptimizer
from borat.measure import Loss
from borat.metric import Metric
from borat.parameters import Kept, Slot, View, partition
from borat.rolling import Products, RollingBundle, Solution
from borat.rolling_on_device import RollingOnDevice

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class FreeBORAT(LossOptimizer):
    r"""A stochastic bundle method without a learning rate, a schedule, or a loss that has to reach its bound.

    As :class:`borat.BORAT` it minimises exactly, in the dual, a proximal problem whose model of the loss is the maximum
    of a few linear pieces and of a constant. It differs in four things. The bundle *rolls*: each batch adds a piece,
    the oldest leaves, and every batch moves the centre. The metric is Adam's. The constant piece is a *target* that
    follows the loss. And the result is an average of the centres, as in Schedule-Free (Defazio et al.,
    2024).

    There are three points: the centre :math:`z`; the average :math:`x`, which is the result; and between them
    :math:`y = (1-\beta_1) z + \beta_1 x`, where gradients are measured. While training the model is at :math:`y`;
    :meth:`eval` puts it at :math:`x`. **Evaluate and save the model at x.** Batch :math:`k` brings :math:`\ell` and
    :math:`g` at :math:`y`, and then

    1. :math:`v \leftarrow \beta_2 v + (1-\beta_2) g^2`, and :math:`D = \sqrt{v / (1-\beta_2^k)} + \varepsilon`;
    2. the new piece has the value :math:`b = \ell + \langle g, z - y \rangle` at the centre; the newest :math:`N-1`
       pieces are kept;
    3. the gap is :math:`M \ell_B` with :math:`\ell_B = \max(\ell - B, 0)`, the target is
       :math:`T = b - \tfrac12 (1 - \beta_1^k) M \ell_B`, and the cap is the Polyak step of this gap, no longer than
       that of all batches together: :math:`\eta = \min(M \ell_B / \gamma, \sum M \ell_B / \sum \gamma)` with
       :math:`\gamma = \langle g, D^{-1} g \rangle`; where that is 0, there is no step. The factor :math:`M \ge 1`
       starts at 1 and grows while the centre is ahead of the model, that is, while the new piece is lower there:
       :math:`\log M \leftarrow \max(0, \log M + \tfrac1k (1 - \beta_1^k) (\ell_B - b_B) / \max(\ell_B, b_B))` with
       :math:`b_B = \max(b - B, 0)`;
    4. :math:`\alpha` maximises :math:`-\tfrac12 \alpha^\top Q \alpha + \alpha^\top (b_1, \dots, b_n, T)` over the
       simplex, with :math:`Q = \eta A D^{-1} A^\top`;
    5. :math:`z \leftarrow \Pi_\Omega(z - \mathrm{lr} (\eta D^{-1} \sum_i \alpha_i g_i + \tau \lambda y))`, where
       :math:`\tau = \eta (1 - \alpha_T)` and :math:`\lambda` is the weight decay;
    6. :math:`x \leftarrow x + \tfrac{2}{k+1} (z - x)`, and :math:`y \leftarrow (1-\beta_1) z + \beta_1 x`.

    Args:
        params: parameters or parameter groups; each group may have its own ``lr`` and ``weight_decay``.
        bundle_size: the number of pieces :math:`N`, the target included; at least 2.
        lr: a factor on the step. Leave it at 1: it is there for schedules, and for trainers that look for it.
        betas: :math:`\beta_1`, how near :math:`y` is to the average (also the warm-up of the target), and
            :math:`\beta_2`, the memory of the metric.
        aim: a fixed share in (0, 1] of the way from the newest piece's value at the centre to the bound, instead of 3.:
            then the target is :math:`T = B + b_B (1 - \mathrm{aim} (1 - \beta_1^k))` and the cap
            :math:`\eta = b_B / \gamma`.
        lower_bound: a value :math:`B` that no batch's loss falls below.
        weight_decay: :math:`\lambda`, decoupled as in AdamW.
        constraint: projects the centre onto a feasible set :math:`\Omega`: one of :mod:`borat.constraints`, or any
            callable that changes a list of tensors in place. It gets all parameters at construction, and after each
            step the centre, as one tensor for each parameter.
        eps: added to the metric, for numerical stability.
        process_group: the processes that train together, where ``torch.distributed`` is initialised; all by default.
        reduce_loss: average the loss over these processes, as DDP and FSDP average the gradients, so that all take the
            same step. Switch it off for a loss that is averaged already, or for processes that train apart.
        capturable: never wait for the parameters' device in :meth:`step`. By default where that device is a GPU or the
            like; ``True`` does it on CPUs too, which ``torch.compile`` of a step needs, and ``False`` nowhere. Bundles
            of more than 8 and sharded parameters are not capturable.

    Example:
        >>> model = torch.nn.Linear(4, 1)
        >>> opt = FreeBORAT(model.parameters())
        >>> for _ in range(2):
        ...     opt.zero_grad()
        ...     loss = model(torch.randn(8, 4)).square().mean()
        ...     loss.backward()
        ...     _ = opt.step(loss=loss)
        >>> opt.eval()  # the model at the result: evaluate it, save it, then opt.train()
    """

    _SHARED = ("bundle_size", "lower_bound", "betas", "aim", "eps")

    def __init__(
        self,
        params: ParamsT,
        bundle_size: int = 3,
        *,
        lr: float | Tensor = 1.0,
        betas: tuple[float, float] = (0.9, 0.99),
        aim: float | None = None,
        lower_bound: float = 0.0,
        weight_decay: float = 0.0,
        constraint: Constraint | None = None,
        eps: float = 1e-8,
        process_group: ProcessGroup | None = None,
        reduce_loss: bool = True,
        capturable: bool | None = None,
    ) -> None:
        check_count("bundle_size", bundle_size, least=2)
        defaults = {
            "lr": lr,
            "bundle_size": bundle_size,
            "betas": betas,
            "aim": aim,
            "lower_bound": lower_bound,
            "weight_decay": weight_decay,
            "eps": eps,
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
        """Always 0: every batch completes an update."""
        return 0

    def flush(self) -> None:
        """Nothing is open between two batches, so that this does nothing. For the result call :meth:`eval`."""

    # The algorithm

    def _take(self, loss: Loss, views: list[View]) -> bool:
        bundle, first = self._bundle, self.param_groups[0]
        beta, beta2 = first["betas"]
        for view in views:
            _join(view)

        # 1. The metric is computed within the products, and stored only once the batch is taken.
        k = bundle.batches + 1
        scale = {"beta2": beta2, "correction": 1.0 / math.sqrt(1.0 - beta2**k), "eps": first["eps"]}

        def sums(view: View, *, precise: bool) -> Tensor | Array:
            return metric.sums(self._pieces(view), view.weights, _metric(view, scale), view.backend, precise=precise)

        # 2., 3., 4. All products are measured anew, as the metric is a new one; the target and the dual.
        pieces = len(bundle.rows) + 1
        value, numbers = self._measure(loss, views, sums, metric.columns(pieces))
        if not (math.isfinite(value) and np.isfinite(numbers).all()):
            self._drop(value)
            return False
        products = Products.of(numbers, pieces)
        solution = bundle.solve(value, products, first["lower_bound"], first["aim"], beta)
        lr = [float(group["lr"]) for group in self.param_groups]
        if not solution.step_norm(np.array(lr)) <= _longest(views):
            self._drop(value)
            return False
        self._warn_of_bound(value, first["lower_bound"])

        # 5. and 6. The step, and its share in the average.
        self._last_step = partial(solution.describe, first["lower_bound"], lr)
        try:
            self._move(views, solution, scale, lr)
        finally:
            bundle.keep(value, products, solution, beta)
        return False

    def _move(self, views: list[View], solution: Solution, scale: dict[str, float], lr: list[float]) -> None:
        bundle = self._bundle
        beta = self.param_groups[0]["betas"][0]
        pull = 1.0 - 2.0 / (bundle.batches + 2)
        is_constrained = self.constraint is not None
        for view in views:
            factor, decay = lr[view.group], float(self.param_groups[view.group]["weight_decay"])
            metric.roll(
                self._pieces(view),
                view.weights,
                _metric(view, scale),
                [factor * c for c in solution.coefficients],
                view.backend,
                keep=None if bundle.free_row is None else view.rows[bundle.free_row],
                decay=factor * solution.step_size * decay,
                pull=pull,
                ratio=beta / bundle.beta if bundle.beta else 1.0,
                beta=beta,
                before_projection=is_constrained,
            )
            for slot in view.part.slots:
                slot.state["active"] = 1
        if is_constrained:
            try:
                self._project([self.state.get(p, {}).get("centre", p) for p in self._all_params()])
            finally:  # an error of the constraint's leaves the model where gradients are measured
                for view in views:
                    metric.after_projection(view.weights, view["centre"], pull=pull, beta=beta)

    def _pieces(self, view: View) -> list[list[Tensor]]:
        """The gradients of all pieces, oldest first."""
        return [*(view.rows[row] for row in self._bundle.rows), view.gradients]

    # The two points: the average x is the result, y is where gradients are measured

    @torch.no_grad()
    def _to_result(self, views: list[View]) -> None:
        """``x = z + (y - z) / beta``. Meanwhile ``y`` is kept, as rounding would not lead back to it."""
        for view in views:
            for slot, y in zip(view.part.slots, view.weights, strict=True):
                slot.keep("y", y)
            if self._bundle.beta:  # all batches so far may have been dropped
                torch._foreach_lerp_(view.weights, view["centre"], 1.0 - 1.0 / self._bundle.beta)
        if views:
            self._warn_of_statistics()

    @torch.no_grad()
    def _from_result(self, views: list[View]) -> None:
        for view in views:
            if "y" in view.part.kept:
                torch._foreach_copy_(view.weights, view["y"])
            else:  # a checkpoint that was made for training, with the weights of one made in evaluation
                torch._foreach_lerp_(view.weights, view["centre"], 1.0 - self._bundle.beta)
            for slot in view.part.slots:
                slot.state.pop("y", None)

    def _warn_of_statistics(self) -> None:
        """Once: to find the layers takes a tenth of a second."""
        if "statistics" in self._warned:
            return
        layers = batchnorm.layers_of(self._all_params())
        if not layers or batchnorm.were_measured(layers):
            self._warned.add("statistics")
        else:
            self._warn_once(
                "statistics",
                "the running statistics of the model's normalisation layers belong to the point where gradients are "
                "measured, not to the result: measure them again with borat.batchnorm.measure_again(model, batches, "
                "optimizer) before you evaluate or save the model.",
            )

    # State

    @property
    def _bundle(self) -> RollingBundle:
        bundle = super()._bundle
        assert isinstance(bundle, RollingBundle)
        return bundle

    def _new_bundle(self, size: int, groups: int, numbers: Mapping[str, Any] | None) -> RollingBundle:
        return RollingBundle(size, numbers)

    def _new_on_device(self, slots: list[Slot]) -> RollingOnDevice:
        for part in partition(slots, by="active"):
            _join(part.view(with_gradients=False))
        for slot in slots:
            slot.state["active"] = 1
        return RollingOnDevice(slots, self._all_params(), len(self.param_groups), self._bundle)

    def _kept(self, group: dict[str, Any], state: Mapping[str, Any]) -> Sequence[Kept]:
        return _kept(group["bundle_size"], "y" in state)

    def _is_part_of_the_bundle(self, state: Mapping[str, Any]) -> bool:
        return bool(state.get("active"))

    def _check_group(self, group: dict[str, Any]) -> None:
        check_finite_lr(group["lr"])
        check_betas(group["betas"])
        if group["aim"] is not None:
            check_share("aim", group["aim"])
        check_not_negative("weight_decay", group["weight_decay"])
        check_positive("eps", group["eps"])
        if self.param_groups and group["betas"] != self.param_groups[0]["betas"]:
            raise ValueError(f"betas must be the same for all parameter groups, got {group['betas']!r}")


@cache
def _kept(bundle_size: int, with_y: bool) -> tuple[Kept, ...]:
    """The newest gradient is the parameters' own: N - 2 rows for N - 1 pieces."""
    kept = (Kept("centre", beside=("active", 0)), Kept("rms", precise=True))
    rows = (Kept("gradients", rows=bundle_size - 2),) if bundle_size > 2 else ()
    return (*kept, *rows, Kept("y")) if with_y else (*kept, *rows)


def _join(view: View) -> None:
    """A parameter's first gradient: it was at rest so far, and the pieces so far did not depend on it."""
    for slot, centre, weights in zip(view.part.slots, view["centre"], view.weights, strict=True):
        if not slot.state["active"]:
            centre.copy_(weights)


def _metric(view: View, scale: dict[str, float]) -> Metric:
    return Metric(view["centre"], view["rms"], **scale)


def _longest(views: list[View]) -> float:
    """The longest step that all parameters can take without leaving the range of their numbers."""
    return min((torch.finfo(view.weights[0].dtype).max for view in views), default=math.inf)
