"""Exact maximisation of a concave quadratic over the simplex: the dual of BORAT's proximal problem (eq. 7).

    maximise  D(alpha) = b'alpha - 1/2 alpha'Q alpha   over  alpha >= 0, sum(alpha) = 1

A single problem is solved on the CPU, by ``dual.c`` or, where it could not be compiled, by NumPy. A batch of problems
is solved where its tensors are, all at once, and nothing waits for the result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from borat import dual_on_device, kernels
from borat.dual_compiled import CompiledDual
from borat.dual_numpy import NumpyDual

Array = npt.NDArray[np.float64]


class Solver(Protocol):
    """What :class:`CompiledDual` and :class:`NumpyDual` can do."""

    def __init__(self, capacity: int) -> None: ...

    def add(self, row: Array, offset: float) -> Array: ...

    @property
    def value(self) -> float: ...

    @staticmethod
    def maximise(Q: Array, b: Array) -> tuple[Array, float]: ...


SOLVER: type[Solver] = CompiledDual if kernels.are_there() else NumpyDual


@dataclass(frozen=True)
class DualSolution:
    """A maximiser of the dual, or those of a batch of duals.

    Attributes:
        alpha: the weights of the pieces, in the kind of the input (float64 array or tensor).
        value: the dual value ``b'alpha - 1/2 alpha'Q alpha``; of a batch a tensor.
        support: the pieces with a positive weight, in increasing order; of a batch a tensor of the shape of ``alpha``
            that is true for them.
    """

    alpha: Any
    value: Any
    support: Any


def solve_dual(Q: Any, b: Any) -> DualSolution:
    """Maximise ``b'alpha - 1/2 alpha'Q alpha`` over the probability simplex, exactly.

    Tensors may have further dimensions in front: a batch of problems of at most 8 pieces, which are solved all at once
    on their device. The host does not wait for them, and so does not see what they contain: a problem with an entry
    that is not finite gets weights that are NaN.

    Args:
        Q: positive semidefinite ``(N, N)`` matrix, as array, tensor or nested list. Only its symmetric part enters
            the objective. Rounding may have made it slightly indefinite.
        b: ``N`` offsets.

    Returns:
        The solution, computed in float64. With several maximisers, one of them.

    Raises:
        ValueError: if the shapes do not fit, or an entry of a single problem is not finite.

    Example:
        >>> solve_dual([[2.0, 0.0], [0.0, 0.0]], [1.0, 0.0]).alpha  # a Polyak step: 1 / 2
        array([0.5, 0.5])
    """
    tensors = [x for x in (b, Q) if isinstance(x, torch.Tensor)]
    if len(tensors) == 2 and (b.ndim > 1 or Q.ndim > 2):
        return _solve_batch(Q, b)
    Q64, b64 = _as_array(Q, "Q"), _as_array(b, "b")
    _check_shapes(Q64, b64)
    alpha, value = SOLVER.maximise(Q64, b64)
    if not math.isfinite(value):
        _check_finite(Q64, b64)
    support = tuple(i for i, weight in enumerate(alpha.tolist()) if weight > 0.0)
    if tensors:
        return DualSolution(torch.from_numpy(alpha).to(tensors[0].device), value, support)
    return DualSolution(alpha, value, support)


def maximise(Q: Array, b: Array) -> tuple[Array, float]:
    """The weights and the dual value, without the checks of :func:`solve_dual`: for a finite, symmetric ``Q``."""
    return SOLVER.maximise(Q, b)


class IncrementalDual:
    """The dual of a growing problem, solved again with each new piece.

    A piece brings one row of ``Q``; earlier entries never change, so what was solved is used again. The solutions
    depend on the pieces and their order alone: adding the same pieces again gives the same bits.
    """

    def __init__(self, capacity: int, solver: type[Solver] | None = None) -> None:
        self._solver = (solver or SOLVER)(capacity)

    def add(self, row: Array, offset: float) -> Array:
        """Append a piece, given ``Q[n, :n+1]`` and ``b[n]``, and return the weights of all pieces so far."""
        return self._solver.add(row, offset)

    @property
    def value(self) -> float:
        """The largest dual value."""
        return self._solver.value


def _solve_batch(Q: torch.Tensor, b: torch.Tensor) -> DualSolution:
    for name, tensor in (("Q", Q), ("b", b)):
        if tensor.is_complex():
            raise ValueError(f"{name} must be real, got a tensor of {tensor.dtype}")
    if Q.ndim < 2 or Q.shape[-2] != Q.shape[-1]:
        raise ValueError(f"Q must hold square matrices, got shape {tuple(Q.shape)}")
    if b.ndim < 1 or b.shape[-1] != Q.shape[-1]:
        raise ValueError(f"Q and b must agree in size, got Q of shape {tuple(Q.shape)} and b of shape {tuple(b.shape)}")
    if not 1 <= b.shape[-1] <= dual_on_device.LIMIT:
        raise ValueError(f"a batch of problems must have 1 to {dual_on_device.LIMIT} pieces, got {b.shape[-1]}")
    try:
        np.broadcast_shapes(Q.shape[:-2], b.shape[:-1])
    except ValueError:
        got = f"{tuple(Q.shape[:-2])} and {tuple(b.shape[:-1])}"
        raise ValueError(f"Q and b must agree in their batches, got {got}") from None
    Q, b = Q.detach().to(torch.float64), b.detach().to(torch.float64)
    Q = 0.5 * Q + 0.5 * Q.mT
    alpha = dual_on_device.maximise(Q, b)
    value = (alpha * (b - 0.5 * (Q @ alpha.unsqueeze(-1)).squeeze(-1))).sum(-1)
    return DualSolution(alpha, value, alpha > 0.0)


def _as_array(x: Any, name: str) -> Array:
    if isinstance(x, torch.Tensor):
        x = x.detach().cpu()
        x = x.numpy() if x.is_complex() else x.to(torch.float64).numpy()
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
