"""Vector operations on the CPU, by C kernels that update in one pass over memory.

All tensors must be on the CPU, of one real dtype, and dense, and those of one parameter must share a layout: the
kernels treat them as contiguous memory. :mod:`borat._vectors.torch` documents the operations.
"""

from __future__ import annotations

import ctypes
from array import array
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from borat._native import library
from borat._vectors.torch import Average, Metric

Array = npt.NDArray[np.float64]

_PARALLEL_FROM = 2**16
"""Smallest number of elements for which several threads pay off."""

_LARGE = 2**20
"""Smallest number of elements for which vectors do not stay in the caches between steps."""

_Array = ctypes.c_char_p
"""A read-only array. Bytes are faster to create than ctypes arrays, and ctypes keeps them alive as well."""


_Int, _Double, _Pointer = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


def _structure(**fields: Any) -> Any:
    """Return the structure of ``kernels.c`` with these fields."""
    return type("Structure", (ctypes.Structure,), {"_fields_": tuple(fields.items())})


_FLAGS = {"threads": ctypes.c_int32, "is_double": ctypes.c_int16, "is_large": ctypes.c_int16}
_Shape = _structure(tensors=_Int, sizes=_Array, terms=_Int, parallel=_Pointer, thread_number=_Pointer, **_FLAGS)
_VECTORS = dict.fromkeys(("out", "base", "terms", "coefficients", "old_base", "last_term", "velocity"), _Array)
_Move = _structure(**_VECTORS, decay=_Double, momentum=_Double)
_POINTS = dict.fromkeys(("gradient", "rows", "weights", "centre", "rms"), _Array)
_Metric = _structure(**_POINTS, beta2=_Double, eps=_Double)
_AVERAGE = dict.fromkeys(("decay", "pull", "ratio", "beta"), _Double)
_Roll = _structure(metric=ctypes.POINTER(_Metric), coefficients=_Array, keep=_Array, **_AVERAGE, before_projection=_Int)


def _parallel() -> tuple[int | None, int | None]:
    """Return the addresses of ``GOMP_parallel`` and ``omp_get_thread_num`` in PyTorch's OpenMP library."""
    loaded = ctypes.CDLL(None)
    functions = (getattr(loaded, name, None) for name in ("GOMP_parallel", "omp_get_thread_num"))
    start, number = (ctypes.cast(function, ctypes.c_void_p).value if function else None for function in functions)
    return start, number


_gomp_parallel, _thread_number = _parallel() if library else (None, None)


def has_kernels_for(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if there are kernels for dense tensors on this device and of this dtype."""
    return library is not None and device.type == "cpu" and dtype in (torch.float32, torch.float64)


class CpuVectors:
    """The vectors of one batch, each as a list of tensors.

    Args:
        weights: the parameters.
        gradients: their gradients; None if only moves along stored gradients follow.
        rows: the stored gradients.
        kept: the other vectors of the state, by name.
    """

    def __init__(
        self,
        weights: list[Tensor],
        gradients: list[Tensor] | None,
        rows: list[list[Tensor]],
        kept: dict[str, list[Tensor]],
    ) -> None:
        assert library is not None
        self._library = library
        self._weights, self._gradients, self._kept = weights, gradients, kept
        self._sizes = array("q", map(Tensor.numel, weights))
        # Addresses are valid for one batch: assigning to ``data`` gives a tensor other memory.
        self._out, self._rows = _addresses(weights), list(map(_addresses, rows))
        self._newest = None if gradients is None else _addresses(gradients)

    def gram_row(self, n: float) -> Array:
        assert self._newest is not None
        n = int(n)
        results = (ctypes.c_double * (len(self._rows) + 1))()
        self._sum("borat_products", n + 1, self._newest, b"".join((*self._rows[:n], self._newest)), results)
        return np.frombuffer(memoryview(results))

    def move(self, coefficients: Array, row: float, *, ok: bool, completes: bool, momentum: float) -> None:
        if not ok:
            return
        row = int(row)
        is_new = self._newest is not None
        newest = self._newest or self._rows[row]
        pieces = zip(coefficients.tolist(), [*self._rows[:row], newest], strict=False)
        terms = [(c, x) for c, x in pieces if c or x is newest]
        at_centre = is_new and row == 0  # where the first piece is measured
        velocity = self._kept.get("velocity") if completes else None
        arguments = _Move(
            self._out,
            self._out if at_centre else _addresses(self._kept["centre"]),
            b"".join([x for _, x in terms]),
            array("d", [c for c, _ in terms]).tobytes(),
            _addresses(self._kept["centre"]) if at_centre and not completes else None,
            self._rows[row] if is_new and not completes else None,
            velocity and _addresses(velocity),
            momentum,
            momentum,
        )
        self._library.borat_move(ctypes.byref(self._shape(len(terms))), ctypes.byref(arguments))
        torch.autograd.graph.increment_version(self._weights)  # autograd detects a backward pass through old values

    def metric_products(self, metric: Metric) -> Array:
        pieces = len(self._rows) + 1
        self._metric = _Metric(
            self._newest,
            b"".join(self._rows),
            self._out,
            _addresses(self._kept["centre"]),
            _addresses(self._kept["rms"]),
            *metric,
        )
        results = (ctypes.c_double * (pieces * (pieces + 1) + pieces + 1))()
        self._sum("borat_measure", pieces, ctypes.byref(self._metric), results)
        return np.frombuffer(memoryview(results)).take(_unpack_indices(pieces))

    def metric_move(
        self, coefficients: Array, decay: float, average: Average, row: float, *, ok: bool, is_constrained: bool
    ) -> None:
        if not ok:
            return
        keep = self._rows[int(row)] if self._rows else None
        arguments = _Roll(ctypes.pointer(self._metric), coefficients.tobytes(), keep, decay, *average, is_constrained)
        self._library.borat_roll(ctypes.byref(self._shape(len(coefficients))), ctypes.byref(arguments))
        torch.autograd.graph.increment_version(self._weights)

    def after_projection(self, average: Average, ok: bool) -> None:
        if ok:  # the kernel has put the weights at the average x
            torch._foreach_lerp_(self._weights, self._kept["centre"], 1.0 - float(average.pull * average.beta))

    def _sum(self, name: str, terms: int, *arguments: object) -> None:
        if getattr(self._library, name)(ctypes.byref(self._shape(terms)), *arguments):
            raise MemoryError("no memory for the partial sums of inner products")

    def _shape(self, terms: int) -> Any:
        sizes, total = self._sizes, sum(self._sizes)
        is_parallel = total >= _PARALLEL_FROM and _gomp_parallel and _thread_number
        return _Shape(
            len(sizes),
            sizes.tobytes(),
            terms,
            _gomp_parallel,
            _thread_number,
            torch.get_num_threads() if is_parallel else 1,
            self._weights[0].dtype == torch.float64,
            total >= _LARGE,
        )


@cache
def _unpack_indices(pieces: int) -> npt.NDArray[np.intp]:
    """Return indices that expand the kernel's results: two packed symmetric matrices, then the other sums."""
    i, j = np.indices((pieces, pieces))
    high, low = np.maximum(i, j), np.minimum(i, j)
    pairs = (high * (high + 1) // 2 + low).ravel()
    count = pieces * (pieces + 1) // 2
    return np.concatenate((pairs, pairs + count, 2 * count + np.arange(pieces + 1)))


def _addresses(tensors: list[Tensor]) -> bytes:
    return array("q", map(Tensor.data_ptr, tensors)).tobytes()
