"""State dicts: the numbers of an algorithm in the first parameter group, and checks of loaded states.

Tensors are in the optimizer's state, as with any PyTorch optimizer. The algorithm's numbers are in the first parameter
group of a state dict, because PyTorch copies the contents of groups and does not cast them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from torch import Tensor
from torch.optim.optimizer import Optimizer

from borat._state.slots import TensorSpec

NUMBERS = "bundle"
"""Key of the numbers in the first parameter group."""

T = TypeVar("T")


def to_plain(state: Any, **more: Any) -> dict[str, Any]:
    """Convert the numbers of a state on the host to Python numbers and lists."""
    numbers = {name: np.asarray(value).tolist() for name, value in state._asdict().items()}
    return numbers | more


def from_plain(template: T, numbers: Mapping[str, Any]) -> T:
    """Return a state with the shapes of ``template`` from Python numbers and lists.

    Raises:
        ValueError: if a number has the wrong shape.
    """
    values = []
    for name, default in template._asdict().items():  # type: ignore[attr-defined]
        value, shape = np.asarray(numbers[name], dtype=np.float64), np.shape(default)
        if value.shape != shape:
            raise ValueError(f"the bundle's {name} must have the shape {shape}, got {value.shape}")
        values.append(value if shape else type(default)(value))
    return template._make(values)  # type: ignore[attr-defined,no-any-return]


def check_keys(state_dict: Mapping[str, Any], name: str, keys: set[str]) -> None:
    """Raise an error if a parameter group lacks an option."""
    for key in keys:
        if not all(key in group for group in state_dict["param_groups"]):
            raise ValueError(f"state_dict must be the state of a {name}, but its parameter groups have no {key!r}")


def check_tensor(spec: TensorSpec, state: Mapping[str, Any], param: Tensor, index: int) -> None:
    """Raise an error if a tensor of the state is missing or does not fit its parameter."""
    tensor, shape = state.get(spec.key), spec.shape(param)
    if not isinstance(tensor, Tensor) or tuple(tensor.shape) != shape:
        found = tuple(tensor.shape) if isinstance(tensor, Tensor) else tensor
        raise ValueError(
            f"state_dict must fit the parameters: {spec.key!r} of parameter {index} must have the shape {shape}, "
            f"got {found}"
        )


def copy_tensors(optimizer: Optimizer, loaded: Mapping[str, Any], params: list[Tensor]) -> None:
    """Copy the tensors of a state dict, which PyTorch would cast to the parameter's dtype or share."""
    saved = [key for group in loaded["param_groups"] for key in group["params"]]
    for key, param in zip(saved, params, strict=True):
        for name, value in loaded["state"].get(key, {}).items():
            if isinstance(value, Tensor):
                optimizer.state[param][name] = value.detach().to(param.device, copy=True)
