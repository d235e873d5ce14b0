"""Steps on the device: they never wait for it, take the host's trajectories, and compile to one graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from borat import ALIG, BORAT, FreeBORAT
from borat.constraints import Box, L1Ball, L2Ball, NonNegative, Simplex


class NoTransfers(TorchDispatchMode):
    """Refuses copies between host and GPU. Tensors without values allow them, though the host waits for them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_):
            source = args[1] if func.overloadpacket is torch.ops.aten.copy_ else args[0]
            assert source.device.type == result.device.type, f"{func} from {source.device} to {result.device}"
        return result


class WithoutRuntime(TorchFunctionMode):
    """Without a CUDA runtime, PyTorch's ``copy_`` and ``[]`` refuse fake CUDA tensors; the operators in them do not."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.copy_:
            return torch.ops.aten.copy_(*args, **(kwargs or {}))
        if func is torch.Tensor.__getitem__:
            return self._item(*args)
        return func(*args, **(kwargs or {}))

    def _item(self, x, index):
        dim = 0
        for i in index if isinstance(index, tuple) else (index,):
            if isinstance(i, slice):
                x, dim = torch.ops.aten.slice(x, dim, i.start, i.stop), dim + 1
            else:
                x = x.select(dim, i)
        return x


@pytest.fixture
def fake_gpu():
    """Tensors without values: to ask for one is an error."""
    with FakeTensorMode(), NoTransfers(), WithoutRuntime():
        yield


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ALIG": (ALIG, {}),
    "ALIG without cap": (ALIG, {"lr": None}),
    **{f"BORAT{n}": (BORAT, {"bundle_size": n}) for n in (1, 2, 3, 5, 8)},
    **{f"FreeBORAT{n}": (FreeBORAT, {"bundle_size": n}) for n in (2, 3, 5, 8)},
}
CONSTRAINTS = [None, L2Ball(1.0), L1Ball(1.0), Box(-1.0, 1.0), NonNegative(), Simplex()]


def layers(device: str) -> list[nn.Parameter]:
    shapes = [(3, 4), (4,), (2, 3, 3, 3), ()]
    return [nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]


def take_fake_steps(make, params: list[nn.Parameter], steps: int = 9) -> Any:
    optimizer = make(params)
    for _ in range(steps):
        for p in params:
            p.grad = torch.empty_like(p)
        optimizer.step(loss=torch.empty((), device="cuda"))
    return optimizer


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=repr)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_never_waits_for_a_gpu(name, constraint, fake_gpu):
    kind, options = OPTIMIZERS[name]
    optimizer = take_fake_steps(lambda params: kind(params, constraint=constraint, **options), layers("cuda"))
    with pytest.raises(DataDependentOutputException):  # so there was something to wait for
        _ = optimizer.last_step


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_never_waits_with_groups_and_rates_on_the_gpu(name, fake_gpu):
    kind, options = OPTIMIZERS[name]
    params = layers("cuda")
    own = {"weight_decay": 0.1} if kind is FreeBORAT else {"momentum": 0.5}
    rates = {"lr": None} if "lr" in options else {"lr": torch.full((), 0.1, device="cuda")}
    groups = [{"params": params[:2], **own}, {"params": params[2:], **rates}]
    take_fake_steps(lambda _: kind(groups, **{**options, **rates}), params)
