"""Functions that the algorithms need besides operators, for each kind of number.

On the host, scalars are Python floats and vectors are NumPy arrays. On a device, both are tensors whose values are
never read: branches become ``where``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from borat._numbers import dual

Number = Any  # a scalar: a float, or a tensor or array without dimensions
Numbers = Any  # a vector or matrix: a NumPy array, a tensor, or an array of another library


class Ops(NamedTuple):
    """The functions of one kind of number."""

    maximum: Callable[[Number, Number], Number]  # the larger of two scalars
    minimum: Callable[[Number, Number], Number]  # the smaller of two scalars
    where: Callable[..., Any]  # the second argument where the first is true, else the third; elementwise on vectors
    sqrt: Callable[[Number], Number]  # the square root of a scalar
    split: Callable[[Numbers, Any], Any]  # the parts along the last axis, given their sizes
    join: Callable[..., Numbers]  # one vector from scalars and vectors
    pad: Callable[[Numbers], Numbers]  # a matrix with a row and a column of zeros appended
    dual: Callable[[Numbers, Numbers], Numbers]  # maximise the dual, given ``Q`` and ``b``: the weights
    index: Numbers  # the vector ``0, 1, ..., pieces - 1``


def host_ops(pieces: int) -> Ops:
    """Return the functions for Python floats and NumPy arrays."""
    return Ops(
        maximum=max,
        minimum=min,
        where=lambda c, x, y: np.where(c, x, y) if isinstance(c, np.ndarray) else x if c else y,
        sqrt=math.sqrt,
        split=_split,
        join=lambda *parts: np.concatenate(parts, axis=None),
        pad=_pad,
        dual=lambda Q, b: dual.maximise(Q, b)[0],
        index=np.arange(pieces),
    )


def _split(x: Numbers, sizes: Sequence[int]) -> list[Numbers]:
    parts, start = [], 0
    for size in sizes:
        parts.append(x[..., start : start + size])
        start += size
    return parts


def _pad(matrix: Numbers) -> Numbers:
    n = len(matrix)
    padded = np.zeros((n + 1, n + 1))
    padded[:n, :n] = matrix
    return padded


def polyak_step(ops: Ops, gap: Number, squared_norm: Number) -> Number:
    """Return ``gap / squared_norm``, or 0 if the gradient is zero or so short that the step overflows."""
    step = gap / ops.where(squared_norm > 0.0, squared_norm, 1.0)
    return ops.where((squared_norm > 0.0) & (step < math.inf), step, 0.0 * step)


def choose(ops: Ops, condition: Any, new: Any, old: Any) -> Any:
    """Return ``new`` where the condition is true and ``old`` elsewhere, of two states of the same shapes."""
    if isinstance(condition, (bool, np.bool_)):
        return new if condition else old
    return type(new)(*[ops.where(condition, x, y) for x, y in zip(new, old, strict=True)])


def replace(state: Any, **changes: Any) -> Any:
    """Return a state with other values in some fields. PyTorch 2.6 cannot compile ``_replace`` and ``_make``."""
    kind = type(state)
    return kind(*[changes[name] if name in changes else getattr(state, name) for name in kind._fields])


def merge_missing(ops: Ops, alpha: Numbers, present: Numbers) -> Numbers:
    """Add the weights of missing pieces, which are copies of the constant piece, to its weight."""
    if isinstance(present, np.ndarray) and present.all():
        return alpha
    pieces, constant = ops.split(alpha, (len(present), 1))
    kept = ops.where(present, pieces, 0.0)
    return ops.join(kept, constant + (pieces - kept).sum())
