"""Public solver of the dual, for single problems and batches, as arrays or tensors."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from borat._numbers.dual import Array, maximise
from borat._numbers.torch_ops import solve_batch


class DualSolution(NamedTuple):
    """Solution of a dual problem or of a batch of them.

    Attributes:
        alpha: weights of the pieces, as a float64 array or tensor like the input.
        value: dual value ``b'alpha - 1/2 alpha'Q alpha``; a tensor for a batch.
        support: indices of the pieces with a positive weight, in increasing order; for a batch a boolean tensor of
            the shape of ``alpha``.
    """

    alpha: Any
    value: Any
    support: Any


def solve_dual(Q: Any, b: Any) -> DualSolution:
    """Maximise ``b'alpha - 1/2 alpha'Q alpha`` over the probability simplex, exactly.

    Tensors may have leading batch dimensions. A batch of problems, each of at most 8 pieces, is solved at once on its
    device, without a device sync; a problem with a non-finite entry then gets NaN weights.

    Args:
        Q: positive semidefinite ``(N, N)`` matrix, as array, tensor or nested list; slightly indefinite matrices, due
            to rounding, are allowed. Only the symmetric part matters.
        b: ``N`` offsets.

    Returns:
        The solution, computed in float64. If there are several maximisers, one of them.

    Raises:
        ValueError: if the shapes do not fit, or an entry of a single problem is not finite.

    Example:
        >>> solve_dual([[2.0, 0.0], [0.0, 0.0]], [1.0, 0.0]).alpha  # a Polyak step: 1 / 2
        array([0.5, 0.5])
    """
    tensors = [x for x in (b, Q) if isinstance(x, torch.Tensor)]
    if len(tensors) == 2 and (b.ndim > 1 or Q.ndim > 2):
        return DualSolution(*solve_batch(Q, b))
    Q64, b64 = _as_array(Q, "Q"), _as_array(b, "b")
    _check_shapes(Q64, b64)
    alpha, value = maximise(Q64, b64)
    if not math.isfinite(value):
        _check_finite(Q64, b64)
    support = tuple(i for i, weight in enumerate(alpha.tolist()) if weight > 0.0)
    return DualSolution(torch.from_numpy(alpha).to(tensors[0].device) if tensors else alpha, value, support)


def _as_array(x: Any, name: str) -> Array:
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        x = x.numpy() if x.is_complex() else x.double().numpy()
    array = np.asarray(x)
    if array.dtype.kind == "c":
        raise ValueError(f"{name} must be real, got an array of {array.dtype}")
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold real numbers, got an array of {array.dtype}")
    return array.astype(np.float64, copy=False)


def _check_shapes(Q: Array, b: Array) -> None:
    if Q.ndim != 2 or Q.shape[0] != Q.shape[1]:
        raise ValueError(f"Q must be a square matrix, got shape {Q.shape}")
    if b.ndim != 1:
        raise ValueError(f"b must be a vector, got shape {b.shape}")
    if len(b) != len(Q):
        raise ValueError(f"Q and b must agree in size, got Q of shape {Q.shape} and b of shape {b.shape}")
    if len(b) == 0:
        raise ValueError("Q and b must hold at least one piece, got none")


def _check_finite(Q: Array, b: Array) -> None:
    for name, array in (("Q", Q), ("b", b)):
        if not np.isfinite(array).all():
            place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise ValueError(f"{name} must be finite, got {array[place]} at index {place}")
