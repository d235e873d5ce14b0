"""Most of a step on a GPU as three operations: products before the dual, the dual, and the move after it.

Each is one launch of a kernel of :mod:`borat.kernels_in_triton`. To PyTorch they are operations like its own: shapes
are known without a GPU, and ``torch.compile`` takes them into its graph. Where there is no Triton, PyTorch's own
operations do the same, in more launches and more passes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

_BLOCK = 1024
"""So many numbers a program takes at once: of a vector, or of all rows together."""
LARGEST_DUAL = 5
"""So many pieces have as many supports as the registers of a program hold."""
_PROGRAMS = 1024
"""At most: a few for each multiprocessor of a GPU, and so many sums are added up in the end."""


_wanted: bool | None = None


def are_used(device: torch.device) -> bool:
    """Whether steps there take them. Triton comes with PyTorch's builds for GPUs on Linux."""
    if _wanted is not None:
        return _wanted
    return device.type == "cuda" and find_spec("triton") is not None and _work(device)


# The compiler asks once, as with torch.compiler.assume_constant_result, which would import all of it.
are_used._dynamo_marked_constant = True  # type: ignore[attr-defined]


@contextmanager
def used(wanted: bool) -> Iterator[None]:
    """Let all steps take them, or none: for those that compare or count."""
    global _wanted
    before, _wanted = _wanted, wanted
    try:
        yield
    finally:
        _wanted = before


@cache
def _work(device: torch.device) -> bool:
    """Whether one of them does. Triton wants a compiler for C, and a GPU that is not too old."""
    one = torch.ones(1, 1, device=device)
    try:
        bundle_products(one, one[0], None, one[0])
    except Exception as error:  # whatever it is, there is another way
        warnings.warn(
            f"PyTorch's operations take the place of our Triton kernels, which failed on {device}: {error!r}",
            stacklevel=2,
        )
        return False
    return True


# BORAT


@custom_op("borat::bundle_products", mutates_args=("centre",))
def bundle_products(rows: Tensor, weights: Tensor, centre: Tensor | None, is_open: Tensor) -> Tensor:
    """The products of all gradients with the newest, as sums to be added up; an open bundle keeps its centre.

    Without a bundle that is open, the weights become the centre.
    """
    sums = _sums_of_bundle(rows)
    shape = {"HAS_CENTRE": centre is not None, "ROWS": _rows(rows)}
    _launch("bundle_products", rows, (weights, centre, is_open, sums), _block_of_all(rows), **shape)
    return sums


@bundle_products.register_fake
def _(rows: Tensor, weights: Tensor, centre: Tensor | None, is_open: Tensor) -> Tensor:
    return _sums_of_bundle(rows)


def _sums_of_bundle(rows: Tensor) -> Tensor:
    return rows.new_empty((_programs(rows, _block_of_all(rows)), len(rows)), dtype=torch.float64)


@custom_op("borat::bundle_move", mutates_args=("rows", "weights", "velocity"))
def bundle_move(rows: Tensor, weights: Tensor, centre: Tensor | None, velocity: Tensor | None, numbers: Tensor) -> None:
    """Nesterov's update where the bundle is complete, and the step alone where it is not.

    Args:
        rows: the gradients.
        weights: where the new ones are written; those before it, where no centre is kept.
        centre: what the step is taken from.
        velocity: that of the momentum.
        numbers: the step along each gradient; the row for the newest, whether the batch is taken, whether it completes
            the bundle, the momentum.
    """
    has = {"HAS_CENTRE": centre is not None, "HAS_VELOCITY": velocity is not None}
    _launch("bundle_move", rows, (weights, centre, velocity, numbers), _BLOCK, **has)


@bundle_move.register_fake
def _(rows: Tensor, weights: Tensor, centre: Tensor | None, velocity: Tensor | None, numbers: Tensor) -> None:
    return None


# FreeBORAT


@custom_op("borat::rolling_products", mutates_args=())
def rolling_products(rows: Tensor, weights: Tensor, centre: Tensor, rms: Tensor, numbers: Tensor) -> Tensor:
    """``<g_i, g_j / D>``, ``<g_i, z>``, for the newest ``<g, z - y>``, ``<g_i / D, g_j / D>``, as sums to be added up.

    ``numbers`` are beta2, the correction of its start, and eps.
    """
    sums = _sums_of_rolling(rows)
    shape = {"ROWS": _rows(rows), "COLUMNS": _power_of_two(2 * len(rows) + 2)}
    _launch("rolling_products", rows, (weights, centre, rms, numbers, sums), _block_of_all(rows), **shape)
    return sums


@rolling_products.register_fake
def _(rows: Tensor, weights: Tensor, centre: Tensor, rms: Tensor, numbers: Tensor) -> Tensor:
    return _sums_of_rolling(rows)


def _sums_of_rolling(rows: Tensor) -> Tensor:
    pieces = len(rows)
    return rows.new_empty((_programs(rows, _block_of_all(rows)), 2 * pieces**2 + pieces + 1), dtype=torch.float64)


@custom_op("borat::rolling_move", mutates_args=("rows", "weights", "centre", "rms"))
def rolling_move(rows: Tensor, weights: Tensor, centre: Tensor, rms: Tensor, numbers: Tensor) -> None:
    """Move the centre, and with it the weights; keep the newest gradient and the metric.

    ``numbers`` are those of the products, then the step along each gradient, the decay of the weights, whether the
    batch is taken, the share of the centre's step in that of the weights, their way to the centre, and the row for the
    newest gradient.
    """
    _launch("rolling_move", rows, (weights, centre, rms, numbers), _BLOCK)


@rolling_move.register_fake
def _(rows: Tensor, weights: Tensor, centre: Tensor, rms: Tensor, numbers: Tensor) -> None:
    return None


# The dual


@custom_op("borat::dual", mutates_args=())
def dual(problems: Tensor, rounding: Tensor) -> Tensor:
    """The weights of a batch of problems, each with ``b`` as its first row and ``Q`` below it.

    ``rounding`` is how large a gap, relative to the numbers it comes from, may be none.
    """
    n = problems.shape[2]
    weights = problems.new_empty(len(problems), n)
    if len(problems):
        shape = {"N": n, "ROWS": _power_of_two(n), "SUPPORTS": 2**n, "num_warps": dual_warps(n)}
        with torch.cuda.device_of(problems):  # type: ignore[no-untyped-call]
            _kernels().dual[(len(problems),)](problems.contiguous(), weights, rounding, **shape)
    return weights


def dual_warps(pieces: int) -> int:
    return 4 if pieces < LARGEST_DUAL else 16


@dual.register_fake
def _(problems: Tensor, rounding: Tensor) -> Tensor:
    return problems.new_empty(problems.shape[0], problems.shape[2])


# Launches


def _kernels() -> Any:
    return import_module("borat.kernels_in_triton")


def _launch(name: str, rows: Tensor, others: tuple[Tensor | None, ...], block: int, **shape: Any) -> None:
    kernels = _kernels()
    real = kernels.tl.float64 if rows.dtype == torch.float64 else kernels.tl.float32
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
        getattr(kernels, name)[(_programs(rows, block),)](
            rows, *others, rows.shape[1], **shape, PIECES=len(rows), BLOCK=block, REAL=real
        )


def _programs(rows: Tensor, block: int) -> int:
    return min(max(-(-rows.shape[1] // block), 1), _PROGRAMS)


def _block_of_all(rows: Tensor) -> int:
    return _BLOCK // _rows(rows)


def _rows(rows: Tensor) -> int:
    return _power_of_two(len(rows))


def _power_of_two(least: int) -> int:
    """The smallest that is at least so large: Triton has no other shapes."""
    return 1 << (least - 1).bit_length()
