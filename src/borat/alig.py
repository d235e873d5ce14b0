"""ALI-G, the special case of BORAT with a bundle of two, as a PyTorch optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from borat.keeping import Constraint
from borat.optimizer import BORAT

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


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
        capturable: see :class:`BORAT`.
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
        capturable: bool | None = None,
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
            capturable=capturable,
        )

    def _check_loaded(self, state_dict: dict[str, Any]) -> None:
        super()._check_loaded(state_dict)
        for group in state_dict["param_groups"]:
            if group["bundle_size"] != 2:
                raise ValueError(f"bundle_size must be 2 for ALIG, got a state with {group['bundle_size']}")
