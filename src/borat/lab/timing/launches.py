"""How many operations a step on the device takes: on a GPU each is at least one launch.

They are counted without a GPU, on tensors without values: with our own kernels, and with PyTorch's operations in their
place. Views and memory that is only reserved launch nothing. An operation on a list of tensors counts once, as
PyTorch's fused optimizers do, though a GPU may split a long list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from borat import kernels_on_device
from borat.free import FreeBORAT
from borat.lab.baselines import take_step
from borat.optimizer import BORAT

TENSORS = 60
_ELEMENTS = 2**20
"""Of one tensor: more than the numbers of any bundle on the device."""


@dataclass(frozen=True)
class Launches:
    """The operations of one step."""

    optimizer: str
    on_parameters: int
    on_numbers: int
    """On the numbers of the bundle, the dual included: however large the model is."""


def measure_launches(tensors: int = TENSORS) -> list[Launches]:
    """Of fused and of default Adam, and of ours."""
    return [_count(name, make, tensors, with_kernels) for name, make, with_kernels in _optimizers()]


def _optimizers() -> Iterator[tuple[str, Callable[..., torch.optim.Optimizer], bool]]:
    yield "Adam (fused)", partial(torch.optim.Adam, fused=True), False
    yield "Adam (foreach)", partial(torch.optim.Adam, foreach=True), False
    for cls in (BORAT, FreeBORAT):
        for n in (2, 3, 5, 8):
            for with_kernels in (True, False):
                name = f"{cls.__name__}, N = {n}{'' if with_kernels else ', without Triton'}"
                yield name, partial(cls, bundle_size=n, capturable=True), with_kernels


def _count(name: str, make: Callable[..., torch.optim.Optimizer], tensors: int, with_kernels: bool) -> Launches:
    with FakeTensorMode(), kernels_on_device.used(with_kernels):
        params = [torch.nn.Parameter(torch.empty(_ELEMENTS)) for _ in range(tensors)]
        optimizer, loss = make(params), torch.empty(())
        for p in params:
            p.grad = torch.empty_like(p)
        take_step(optimizer, loss)  # the first one makes the state
        with _Counter() as counter:
            take_step(optimizer, loss)
    return Launches(name, counter.large, counter.small)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations by whether a tensor of theirs is one of parameters."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.large = self.small = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not _launches_nothing(func):
            sizes = [x.numel() for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
            if max(sizes, default=0) >= _ELEMENTS:
                self.large += 1
            else:
                self.small += 1
        return result


def _launches_nothing(func: Any) -> bool:
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
    return (
        is_view
        or func.namespace not in ("aten", "borat")
        or "empty" in func._schema.name
        or "_view" in func._schema.name
    )
