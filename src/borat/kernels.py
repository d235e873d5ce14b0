"""The CPU kernels of ``kernels.c``: whole updates in one pass over memory.

They are compiled when the package is built, if there is a C compiler; without them PyTorch's kernels do the same in
several passes, see :mod:`borat.vectors`. All tensors have to be on the CPU, of one real dtype and dense, and those of
a column the same layout: the kernels see runs of memory.
"""

from __future__ import annotations

import ctypes
import zlib
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]
Term = tuple[float, list[Tensor]]
"""A coefficient and the tensors it applies to."""


class Sizes(NamedTuple):
    """The numbers of elements of tensors: of each, as the kernels want them, and of all."""

    each: bytes
    total: int

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> Sizes:
        each = array("q", map(Tensor.numel, tensors))
        return cls(each.tobytes(), sum(each))


class Vector(list[Tensor]):
    """The tensors of a vector, for the time of one call: where they are is looked up once."""

    _addresses: bytes | None = None
    sizes: Sizes | None = None
    """Where somebody knows them already."""

    @property
    def addresses(self) -> bytes:
        if self._addresses is None:
            self._addresses = _addresses(self)
        return self._addresses


class Metric(NamedTuple):
    """Adam's metric ``correction * s + eps`` with ``s = sqrt(beta2 * rms^2 + (1 - beta2) * g^2)``, and the centre."""

    centre: list[Tensor]
    rms: list[Tensor]
    beta2: float
    correction: float
    eps: float


SOURCES = ("kernels.c", "kernels_of_real.h", "dual.c")
"""What the library is compiled from, in the order of hatch_build.py."""

_PARALLEL_FROM = 2**16
"""So many elements are worth the start of further threads."""

_LARGE = 2**20
"""A list with so many elements does not stay in the caches from one step to the next."""

_Array = ctypes.c_char_p
"""An array that is only read. As bytes it is made faster than as an array of ctypes, and lives as long."""


class _Shape(ctypes.Structure):
    _fields_ = (
        ("tensors", ctypes.c_int64),
        ("sizes", _Array),
        ("terms", ctypes.c_int64),
        ("parallel", ctypes.c_void_p),
        ("thread_number", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
        ("is_double", ctypes.c_int16),
        ("is_large", ctypes.c_int16),
    )


class _Move(ctypes.Structure):
    _fields_ = (
        ("out", _Array),
        ("base", _Array),
        ("terms", _Array),
        ("coefficients", _Array),
        ("old_base", _Array),
        ("last_term", _Array),
        ("velocity", _Array),
        ("decay", ctypes.c_double),
        ("momentum", ctypes.c_double),
    )


class _Metric(ctypes.Structure):
    _fields_ = (
        ("gradient", _Array),
        ("rows", _Array),
        ("weights", _Array),
        ("centre", _Array),
        ("rms", _Array),
        ("beta2", ctypes.c_double),
        ("correction", ctypes.c_double),
        ("eps", ctypes.c_double),
    )


class _Roll(ctypes.Structure):
    _fields_ = (
        ("metric", ctypes.POINTER(_Metric)),
        ("coefficients", _Array),
        ("keep", _Array),
        ("decay", ctypes.c_double),
        ("pull", ctypes.c_double),
        ("ratio", ctypes.c_double),
        ("beta", ctypes.c_double),
        ("before_projection", ctypes.c_int64),
    )


def _load() -> ctypes.CDLL | None:
    """The compiled kernels; None where they are missing, for another machine, or older than their sources."""
    folder = Path(__file__).parent
    try:
        library = ctypes.CDLL(str(folder / "_kernels.so"))
        compiled_from = ctypes.c_uint32.in_dll(library, "borat_sources").value
        sources = b"".join((folder / name).read_bytes() for name in SOURCES)
    except (OSError, ValueError):
        return None
    return library if compiled_from == zlib.crc32(sources) else None


def _parallel() -> tuple[int | None, int | None]:
    """The addresses of ``GOMP_parallel`` and ``omp_get_thread_num`` in the OpenMP library that PyTorch has loaded."""
    loaded = ctypes.CDLL(None)
    functions = (getattr(loaded, name, None) for name in ("GOMP_parallel", "omp_get_thread_num"))
    start, number = (ctypes.cast(function, ctypes.c_void_p).value if function else None for function in functions)
    return start, number


_library = _load()
_gomp_parallel, _thread_number = _parallel() if _library else (None, None)


def library() -> ctypes.CDLL | None:
    """The compiled library; the dual has its own part in it."""
    return _library


def are_there() -> bool:
    """Whether the kernels were compiled."""
    return _library is not None


def move(
    out: list[Tensor],
    base: list[Tensor],
    terms: Sequence[Term],
    *,
    old_base: list[Tensor] | None = None,
    last_term: list[Tensor] | None = None,
    velocity: list[Tensor] | None = None,
    decay: float = 0.0,
    momentum: float = 0.0,
) -> None:
    """``out = base - s`` with ``s`` the sum of coefficient * tensor; ``base`` may be ``out``.

    With a velocity, ``velocity = decay * velocity + s`` and ``out -= momentum * velocity``. What is given as
    ``old_base`` and ``last_term`` gets a copy of the base and of the last term's tensors.
    """
    assert _library is not None
    addresses = _of(out)
    arguments = _Move(
        addresses,
        addresses if base is out else _of(base),
        _of_all(tensors for _, tensors in terms),
        _numbers([coefficient for coefficient, _ in terms]),
        old_base and _of(old_base),
        last_term and _of(last_term),
        velocity and _of(velocity),
        decay,
        momentum,
    )
    _library.borat_move(ctypes.byref(_shape(out, len(terms))), ctypes.byref(arguments))
    torch.autograd.graph.increment_version(out)  # or a backward pass through the old values would go unnoticed


def products(left: list[Tensor], terms: Sequence[list[Tensor]]) -> Array:
    """The inner product of ``left`` with each of the terms, summed in float64."""
    assert _library is not None
    results = (ctypes.c_double * len(terms))()
    shape = _shape(left, len(terms))
    if _library.borat_products(ctypes.byref(shape), _of(left), _of_all(terms), results):
        raise MemoryError("no memory for the partial sums of inner products")
    return np.frombuffer(memoryview(results))


def measure(pieces: Sequence[list[Tensor]], weights: list[Tensor], metric: Metric) -> Array:
    """The inner products of pieces, oldest first, in Adam's metric: see :func:`borat.metric.sums`."""
    assert _library is not None
    n = len(pieces)
    results = (ctypes.c_double * (n * (n + 1) + n + 1))()
    shape, arguments = _shape(weights, n), _metric(pieces, weights, metric)
    if _library.borat_measure(ctypes.byref(shape), ctypes.byref(arguments), results):
        raise MemoryError("no memory for the partial sums of inner products")
    return np.frombuffer(memoryview(results))


def roll(
    pieces: Sequence[list[Tensor]],
    weights: list[Tensor],
    metric: Metric,
    coefficients: Sequence[float],
    *,
    keep: list[Tensor] | None,
    decay: float,
    pull: float,
    ratio: float,
    beta: float,
    before_projection: bool,
) -> None:
    """Move centre and weights along the pieces, oldest first: see :func:`borat.metric.roll`."""
    assert _library is not None
    arguments = _Roll(
        ctypes.pointer(_metric(pieces, weights, metric)),
        _numbers(coefficients),
        keep and _of(keep),
        decay,
        pull,
        ratio,
        beta,
        before_projection,
    )
    _library.borat_roll(ctypes.byref(_shape(weights, len(pieces))), ctypes.byref(arguments))
    torch.autograd.graph.increment_version(weights)


def _metric(pieces: Sequence[list[Tensor]], weights: list[Tensor], metric: Metric) -> _Metric:
    return _Metric(
        _of(pieces[-1]),
        _of_all(pieces[:-1]),
        _of(weights),
        _of(metric.centre),
        _of(metric.rms),
        metric.beta2,
        metric.correction,
        metric.eps,
    )


def _shape(tensors: list[Tensor], terms: int) -> _Shape:
    sizes = (tensors.sizes if isinstance(tensors, Vector) else None) or Sizes.of(tensors)
    is_parallel = sizes.total >= _PARALLEL_FROM and _gomp_parallel and _thread_number
    threads = torch.get_num_threads() if is_parallel else 1
    return _Shape(
        len(tensors),
        sizes.each,
        terms,
        _gomp_parallel,
        _thread_number,
        threads,
        tensors[0].dtype == torch.float64,
        sizes.total >= _LARGE,
    )


def _addresses(tensors: list[Tensor]) -> bytes:
    return array("q", list(map(Tensor.data_ptr, tensors))).tobytes()


def _of(tensors: list[Tensor]) -> bytes:
    return tensors.addresses if isinstance(tensors, Vector) else _addresses(tensors)


def _of_all(lists: Iterable[list[Tensor]]) -> bytes:
    return b"".join(map(_of, lists))


def _numbers(values: Sequence[float]) -> bytes:
    return array("d", values).tobytes()
