"""FreeBORAT: a bundle that rolls with every batch, in Adam's metric, and needs no learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from borat._checks import check_betas, check_count, check_fraction, check_nonnegative, check_positive
from borat._numbers.rolling import Rolling, RollingInfo, columns, describe_rolling, metric_memory, new_rolling, roll
from borat._numbers.step_info import StepInfo
from borat._optim.base import Constraint, LossOptimizer
from borat._optim.checks import check_finite_lr
from borat._state.slots import Batch, Part, Slot, TensorSpec
from borat._state.store import Loss
from borat._vectors.torch import Average, Metric

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class FreeBORAT(LossOptimizer):
    r"""Stochastic bundle method that needs no learning rate, no schedule and no lower bound of the loss.

    Like :class:`borat.BORAT`, it solves a proximal problem exactly, by its dual. The model of the loss is the maximum
    of a few linear pieces and a constant. The bundle *rolls*: each batch adds a piece, removes the oldest, and
    moves the centre. The metric is Adam's, the constant piece is a *target* below the loss, and the result is an
    average of the centres, as in Schedule-Free (Defazio et al., 2024).

    There are three points: the centre :math:`z`, which takes the steps; the average :math:`x`, which is the result; and
    :math:`y = (1-\beta_1) z + \beta_1 x` between them, where gradients are measured. During training the model is at
    :math:`y`; :meth:`eval` moves it to :math:`x`. **Evaluate and save the model at x.** With the loss :math:`\ell` and
    the gradient :math:`g` of batch :math:`k` at :math:`y`, a step does the following:

    1. :math:`v \leftarrow \beta_2 v + (1-\beta_2) g^2`, and :math:`D = \sqrt{v / (1-\beta_2^k)} + \varepsilon`;
    2. the new piece has the value :math:`b = R \ell + \langle g, z - y \rangle` at the centre, where the scale
       :math:`R \le 1` converts losses to the units of the gradient; the newest :math:`N-1` pieces are kept;
    3. the gap is :math:`h = \min(R (9 w + l), L) + q s \gamma` with
       :math:`\gamma = \langle g, D^{-1} g \rangle`. Here :math:`w` is the distance of the loss below its average so
       far and :math:`l` its distance above its lowest value, both decaying like :math:`1/\sqrt k`; :math:`R` is the
       fraction of the loss's fall that new gradients confirm, 0 at first; :math:`L` is a limit if losses are noisy; and
       :math:`s = \min(0.01, 1 / \|D^{-1} g\|)` is the size of the first steps, which fade:
       :math:`q \leftarrow q (1 - 3 s)`, from :math:`q = 1`. The target is
       :math:`T = b - \tfrac12 (1 - \beta_1^k) h`. The cap is :math:`\eta = \min(h / \gamma, c)`,
       where :math:`c` is the Polyak step size for all batches together, :math:`\sum h / \sum \gamma`, but it grows only
       in batches in which the loss is further below its average than the decayed :math:`w`;
    4. :math:`\alpha` maximises :math:`-\tfrac12 \alpha^\top Q \alpha + \alpha^\top (b_1, \dots, b_n, T)` over the
       simplex, with :math:`Q = \eta A D^{-1} A^\top`;
    5. :math:`z \leftarrow \Pi_\Omega(z - \mathrm{lr} (\eta D^{-1} \sum_i \alpha_i g_i + \tau \lambda y))`, where
       :math:`\tau = \eta (1 - \alpha_T)` and :math:`\lambda` is the weight decay;
    6. :math:`x \leftarrow x + \tfrac{2}{k+1} (z - x)`, and :math:`y \leftarrow (1-\beta_1) z + \beta_1 x`.

    A batch is dropped if its loss or gradient is not finite, if its step overflows, or, without ``aim``, if its
    :math:`\gamma` exceeds a thousand times the mean so far; two batches in a row are never dropped for the last reason.

    Args:
        params: parameters or parameter groups; each group may have its own ``lr`` and ``weight_decay``.
        bundle_size: the number of pieces :math:`N`, the target included; at least 2. A bundle of two needs as much
            state as AdamW.
        lr: a factor on the step. Leave it at 1; it exists for schedulers and for trainers that expect it.
        betas: :math:`\beta_1`, the weight of the average in :math:`y` (also the warm-up of the target), and
            :math:`\beta_2`, the decay of the metric's running mean.
        aim: fraction in (0, 1] of the distance from the newest piece's value at the centre to the bound. If given, it
            replaces item 3: :math:`R` is 1, the target is :math:`T = B + b_B (1 - \mathrm{aim} (1 - \beta_1^k))`, and
            the cap is :math:`\eta = b_B / \gamma` with :math:`b_B = \max(b - B, 0)`.
        lower_bound: a value :math:`B` that no batch's loss falls below. It is used only if ``aim`` is given.
        weight_decay: :math:`\lambda`, decoupled as in AdamW.
        constraint: projects the centre onto a feasible set :math:`\Omega`: one of :mod:`borat.constraints`, or any
            callable that changes a list of tensors in place. It gets all parameters at construction, and after each
            step the centre, as one tensor for each parameter.
        eps: added to the metric, for numerical stability.
        process_group: see :class:`borat.BORAT`.
        reduce_loss: see :class:`borat.BORAT`.
        capturable: see :class:`borat.BORAT`.

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
        if isinstance(bundle_size, float):  # in other optimizers, this argument is the learning rate
            raise ValueError(
                f"bundle_size must be an integer of at least 2, got {bundle_size!r}. FreeBORAT has no learning "
                "rate; lr, a factor on the step, is a keyword argument"
            )
        check_count("bundle_size", bundle_size, minimum=2)
        defaults = {
            "lr": lr,
            "bundle_size": bundle_size,
            "betas": betas,
            "aim": aim,
            "lower_bound": lower_bound,
            "weight_decay": weight_decay,
            "eps": eps,
        }
        super().__init__(params, defaults, constraint, process_group, reduce_loss, capturable)

    @property
    def bundle_position(self) -> int:
        """Always 0: every batch completes an update."""
        return 0

    def flush(self) -> None:
        """Do nothing: every batch completes an update. Call :meth:`eval` for the result."""

    # The algorithm

    def _update(self, loss: Loss, batch: Batch) -> None:
        store, groups, first = self._store, self.param_groups, self.param_groups[0]
        options = (*first["betas"], first["eps"], first["lower_bound"], *(group["lr"] for group in groups))
        beta, beta2, eps, bound, lr = store.convert(*options, scalars=4)

        # 1. The metric. metric_products computes it and metric_move stores it, unless the batch is dropped.
        metric = Metric(metric_memory(beta2, store.state.batches), eps)

        # 2., 3. and 4. The inner products, all of them because the metric has changed; the target and the dual.
        shape = len(groups), sum(columns(first["bundle_size"] - 1))
        products = "metric_products", metric
        loss, sums = store.measure(loss, batch, products, shape, self.process_group, self.reduce_loss)
        longest = min([math.inf, *[part.largest for part, _ in batch]])
        largest = math.inf if store.device is None else longest
        step = store.update(roll, loss, sums, beta, bound, lr, aim=first["aim"], longest=longest, largest=largest)

        # 5. and 6. The step and the average.
        average = Average(step.pull, step.ratio, beta)
        is_constrained = self.constraint is not None
        coefficients, decay = list(step.coefficients), list(step.decay)
        for part, vectors in batch:
            c, d = coefficients[part.group], decay[part.group] * groups[part.group]["weight_decay"]
            vectors.metric_move(c, d, average, step.row, ok=step.ok, is_constrained=is_constrained)
        if is_constrained:
            try:
                centres = [self.state.get(p, {}).get("centre", p) for p in self._all_params()]
                self._project(centres, where=step.ok)
            finally:  # if the constraint raises, leave the model where gradients are measured
                for _, vectors in batch:
                    vectors.after_projection(average, step.ok)

    # The two points: the average x is the result, y is where gradients are measured

    @torch.no_grad()
    def _to_result(self, parts: list[Part]) -> None:
        """Set ``x = z + (y - z) / beta``. Store ``y``, which cannot be recovered exactly because of rounding."""
        beta = float(self._sync()[0].beta)
        for part in parts:
            for slot, y in zip(part.slots, part.weights(), strict=True):
                slot.store_copy("y", y)
            if beta:  # else all batches so far were dropped
                torch._foreach_lerp_(part.weights(), part.kept["centre"], 1.0 - 1.0 / beta)

    @torch.no_grad()
    def _from_result(self, parts: list[Part]) -> None:
        for part in parts:
            if "y" in part.kept:
                torch._foreach_copy_(part.weights(), part.kept["y"])
            else:  # a state dict saved while training, with weights saved at the result
                torch._foreach_lerp_(part.weights(), part.kept["centre"], 1.0 - float(self._sync()[0].beta))
            for slot in part.slots:
                slot.state.pop("y", None)

    # State

    def _new_state(self, bundle_size: int, groups: int) -> Rolling:
        return new_rolling(bundle_size)

    def _has_pieces(self, state: Rolling) -> bool:
        return bool(state.updates > 0)

    def _describe(self, info: RollingInfo) -> StepInfo:
        return describe_rolling(info)

    def _join(self, slots: list[Slot]) -> None:
        """Add parameters with their current values as centre: they have not moved yet, and no piece depends on them."""
        for slot in slots:
            slot.tensors["centre"].copy_(slot.weights)

    def _uses_bound(self) -> bool:
        return self.param_groups[0]["aim"] is not None

    def _specs(self, group: Mapping[str, Any], state: Mapping[str, Any]) -> Sequence[TensorSpec]:
        specs = [TensorSpec("centre"), TensorSpec("rms", at_least_float32=True)]
        if group["bundle_size"] > 2:  # the newest of the N - 1 gradients is still in ``grad``
            specs.append(TensorSpec("gradients", rows=group["bundle_size"] - 2))
        return [*specs, TensorSpec("y")] if "y" in state else specs

    def _check_group(self, group: Mapping[str, Any]) -> None:
        check_finite_lr(group["lr"])
        check_betas(group["betas"])
        if group["aim"] is not None:
            check_fraction("aim", group["aim"])
        check_nonnegative("weight_decay", group["weight_decay"])
        check_positive("eps", group["eps"])
        if self.param_groups and group["betas"] != self.param_groups[0]["betas"]:
            raise ValueError(f"betas must be the same for all parameter groups, got {group['betas']!r}")
