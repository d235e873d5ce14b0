"""Number of operations of a step on the device; on a GPU, each is at least one kernel launch.

Operations are counted without a GPU, on fake tensors. Views and allocations launch no kernels. An operation on a list
of tensors counts once, as in PyTorch's fused optimizers, although a GPU may split a long list. The kernels that the
compiler generates for the same step are counted on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from borat import BORAT, FreeBORAT
from borat._vectors.torch import COMPILED_DEVICES
from borat.lab.baselines import take_step
from borat.lab.tables import Table

_ELEMENTS = 2**20
"""Number of elements of a parameter: more than the numbers of any bundle."""


def measure_launches(tensors: int = 60) -> Table:
    """Count the operations in a step of Adam, BORAT and FreeBORAT.

    Operations on the numbers of the bundle, including the dual, do not depend on the size of the model.
    """
    optimizers: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "Adam (fused)": partial(torch.optim.Adam, fused=True),
        "Adam (foreach)": partial(torch.optim.Adam, foreach=True),
    }
    for cls in (BORAT, FreeBORAT):
        optimizers |= {f"{cls.__name__}, N = {n}": partial(cls, bundle_size=n, capturable=True) for n in (2, 3, 5, 8)}
    rows = []
    for name, make in optimizers.items():
        with FakeTensorMode():
            optimizer = make([torch.nn.Parameter(torch.empty(_ELEMENTS)) for _ in range(tensors)])
            _take_steps(optimizer, steps=1)  # creates the state
            with _Counter() as counter:
                _take_steps(optimizer, steps=1)
        rows.append((name, str(counter.large), str(counter.small)))
    head = ("optimizer", "on the parameters", "on the bundle's numbers")
    return Table(f"Operations of a step on the device, for {tensors} tensors", head, rows)


def measure_kernels() -> Table:
    """Count the kernels that the compiler generates for a step on the device, at the default bundle size."""
    from torch._inductor import metrics

    rows = []
    COMPILED_DEVICES.add("cpu")
    try:
        for cls in (BORAT, FreeBORAT):
            torch._dynamo.reset()
            metrics.reset()
            _take_steps(cls([torch.nn.Parameter(torch.randn(2**10)) for _ in range(3)], capturable=True), steps=2)
            rows.append((cls.__name__, str(metrics.generated_kernel_count)))
    finally:
        COMPILED_DEVICES.remove("cpu")
    return Table("Kernels of a compiled step on the device", ("optimizer", "generated kernels"), rows)


def _take_steps(optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        for p in (p for group in optimizer.param_groups for p in group["params"] if p.grad is None):
            p.grad = torch.ones_like(p)
        take_step(optimizer, torch.ones(()))


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count operations on tensors as large as a parameter, and on smaller ones."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.large = self.small = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        is_foreign = func.namespace not in ("aten", "borat")
        if not (is_view or is_foreign or any(word in func._schema.name for word in ("empty", "_view"))):
            sizes = [x.numel() for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
            is_large = max(sizes, default=0) >= _ELEMENTS
            self.large += is_large
            self.small += not is_large
        return result
