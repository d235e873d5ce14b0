"""Passes over the parameters in JAX, one array of the parameters' tree at a time.

These are the operations of :mod:`borat._vectors` as pure functions. What a dropped batch leaves unchanged is a mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, custom_jvp, lax

from borat.jax._numbers import number_type

_ROWS, _COLUMNS = 8, 128
"""Rows that are added up at once, and columns of the matrix that a long vector is seen as.

XLA unrolls a sum of 8 on CPUs and vectorises the loop around it. Also, sums of sums have small rounding errors.
"""
_SMALL = 2048
"""Largest number of elements that are added up one after the other."""
_BLOCK, _LOOP = 1 << 18, 1 << 15
"""Number of elements in a block of a long array on one CPU, and the size from which an array is long."""
_MINOR = 64
"""Least length of the last axis: XLA's loops on CPUs are slow if it is short, as in the weights of a convolution."""


def precise_type(x: Array) -> Any:
    """Return the dtype of sums of an array's elements: at least float32."""
    return jnp.promote_types(jnp.result_type(x), jnp.float32)


def longest_step(params: Sequence[Array]) -> float:
    """Return the length of the longest step that all parameters can take."""
    return min(float(jnp.finfo(p.dtype).max) for p in params)  # type: ignore[no-untyped-call]


def where(condition: Any, new: Sequence[Array], old: Sequence[Array]) -> list[Array]:
    """Return the new arrays where the condition is true, in the dtypes of the old ones."""
    return [jnp.where(condition, x.astype(y.dtype), y) for x, y in zip(new, old, strict=True)]


def keep(rows: Sequence[Array], g: Array, row: Array, ok: Array) -> list[Array]:
    """Return the kept gradients with the new one in its row, unless the batch is dropped."""
    return [jnp.where(ok & (row == i), g.astype(old.dtype), old) for i, old in enumerate(rows)]


def is_settled(x: Array) -> Array:
    """Return True, but only after all elements of an array are computed: XLA does not know the value.

    A loop over a few elements needs the whole array, which is otherwise read once more.
    """
    if not _is_one_cpu() or x.size < _BLOCK:
        return _is_any(x)
    flat = x.ravel()

    def is_any(i: Any, ok: Array) -> Array:
        return ok & _is_any(lax.dynamic_index_in_dim(flat, i, keepdims=False))

    settled: Array = lax.fori_loop(0, 2, is_any, _is_any(flat[0]))
    return settled


def _is_any(x: Array) -> Array:
    """Return True for every number and for NaN, which XLA does not simplify."""
    return (x == x) | (x != x)


def gram_row(rows: Sequence[Array], g: Array) -> list[Array]:
    """Return ``<g, g_k>`` for the kept gradients, then ``<g, g>``."""

    def products(*pieces: Array) -> list[Array]:
        return [piece * pieces[-1] for piece in pieces]

    return _sums(products, [x.astype(precise_type(g)) for x in (*rows, g)])


def combine(coefficients: Array, pieces: Sequence[Array]) -> Array:
    """Return the sum of coefficient times gradient."""
    c = coefficients.astype(precise_type(pieces[0]))
    total: Array = sum(c[i] * g.astype(c.dtype) for i, g in enumerate(pieces))  # type: ignore[assignment]
    return total


def new_rms(rms: Array, g: Array, beta2: Any) -> Array:
    """Return the root of the mean square of the gradients, with a new one."""
    beta2 = jnp.asarray(beta2, rms.dtype)
    return jnp.sqrt(beta2 * rms**2 + (1.0 - beta2) * g.astype(rms.dtype) ** 2)


def metric(rms: Array, eps: Any) -> Array:
    """Return the diagonal of the metric."""
    return rms + jnp.asarray(eps, rms.dtype)


def metric_products(pieces: Sequence[Array], y: Array, z: Array, rms: Array, beta2: Any, eps: Any) -> list[Array]:
    """Return the inner products of FreeBORAT's pieces, in the metric with the newest gradient.

    They are ``<g_i, g_j / D>`` and ``<g_i / D, g_j / D>`` for ``j <= i``, ``<g_i, z>`` and ``<g, z - y>``.
    """

    def products(*arrays: Array) -> list[Array]:
        *G, y, z, rms = arrays
        D = metric(new_rms(rms, G[-1], beta2), eps)
        inverse = 1.0 / D
        scaled = [g * inverse for g in G]
        lower = [(i, j) for i in range(len(G)) for j in range(i + 1)]
        once, twice = [G[i] * scaled[j] for i, j in lower], [scaled[i] * scaled[j] for i, j in lower]
        apart = G[-1] * (z - y) + 0.0 * D  # NaN, and so a dropped batch, if a square has overflowed
        return [*once, *twice, *(g * z for g in G), apart]

    return _sums(products, [x.astype(rms.dtype) for x in (*pieces, y, z, rms)])


def all_products(sums: Array, n: int) -> Array:
    """Return the products of :func:`borat._numbers.rolling.columns`, from those of :func:`metric_products`."""
    lower = [(i, j) for i in range(n) for j in range(i + 1)]
    place = [lower.index((max(i, j), min(i, j))) for i in range(n) for j in range(n)]  # both matrices are symmetric
    order = [*place, *(len(lower) + k for k in place), *range(2 * len(lower), sums.shape[-1])]
    return sums[:, np.array(order)]


def metric_step(pieces: Sequence[Array], D: Array, coefficients: Array) -> Array:
    """Return the sum of coefficient times gradient over the metric."""
    return combine(coefficients, pieces) / D


def follow(y: Array, centre: Array, back: Array, average: Sequence[Any]) -> Array:
    """Return ``y`` after the centre has moved, by ``-back``.

    In the average ``x = z + (y - z) / beta`` the new centre gets the weight ``1 - pull``, so that
    ``y' = z' + pull * (ratio * (y - z) + beta * (z - z'))``, where ``ratio`` is 1 unless ``beta`` has changed.
    """
    pull, ratio, beta = (jnp.asarray(x, precise_type(y)) for x in average)
    y, centre = (x.astype(pull.dtype) for x in (y, centre))
    return centre + pull * (ratio * (y - centre) + (beta - ratio) * back)


def _sums(function: Callable[..., Sequence[Array]], arrays: Sequence[Array]) -> list[Array]:
    """Return the sum of each array that an elementwise function returns, in one pass over its arguments."""
    if _is_one_cpu():
        return _sums_on_cpu(function, arrays)
    arrays = [_widen(x) for x in arrays]
    first = arrays[0]
    if first.ndim == 1 and first.size > _SMALL:
        cut = first.size - first.size % (_ROWS * _COLUMNS)
        parts = [x[:cut].reshape(-1, _COLUMNS) for x in arrays], [x[cut:] for x in arrays]
        return [x + y for x, y in zip(*(_sums(function, part) for part in parts), strict=True)]
    axes: Sequence[int] = range(first.ndim)
    if first.size > _SMALL:
        axes = (1,)
        if first.shape[0] % _ROWS == 0:
            arrays = [x.reshape(-1, _ROWS, *x.shape[1:]) for x in arrays]
    terms = function(*arrays)
    sums = _reduce(tuple(axes), *terms)
    return _sums(lambda *x: x, sums) if sums[0].ndim else [x.astype(number_type()) for x in sums]


def _is_one_cpu() -> bool:
    """Return True if arrays are on one CPU, so that they can be flattened: none is sharded."""
    return jax.default_backend() == "cpu" and jax.device_count() == 1


def _sums_on_cpu(function: Callable[..., Sequence[Array]], arrays: Sequence[Array]) -> list[Array]:
    """Return the sums of :func:`_sums`, those of long arrays in a loop over blocks.

    Intermediate results of a block stay in the caches; those of a long array would be allocated anew in each step,
    which takes longer than the sums. Rows are short because a CPU prefetches few streams of memory at once, not one for
    each row of each array. Inside the loop, XLA does not map each index to the shape before flattening.
    """
    size = arrays[0].size
    if size <= _SMALL:
        return [x.astype(number_type()) for x in _reduce((0,), *function(*[x.ravel() for x in arrays]))]
    if size > _LOOP:
        shape = (-1, _ROWS, _ROWS) if size % _ROWS**2 == 0 else (-1,)
        arrays = [x.reshape(shape) for x in arrays]
        blocks = max(size // _BLOCK, 2)
        length = arrays[0].shape[0] // blocks

        def add_block(i: Any, total: list[Array]) -> list[Array]:
            return _add(total, _block_sums(function, [lax.dynamic_slice_in_dim(x, i * length, length) for x in arrays]))

        first = arrays[0].ravel()[0]
        zero = jnp.where(first == first, 0.0, 0.0).astype(number_type())  # varies over the axes that the arrays do
        count = len(jax.eval_shape(function, *arrays))
        total = lax.fori_loop(0, blocks, add_block, [zero] * count)
        rest = [x[blocks * length :] for x in arrays]
        return _add(total, _sums_on_cpu(function, rest)) if rest[0].size else total
    return _block_sums(function, arrays)


def _block_sums(function: Callable[..., Sequence[Array]], arrays: Sequence[Array]) -> list[Array]:
    """Return the sums of a block: first of eight rows of eight elements at once."""
    arrays = [x.ravel() for x in arrays]
    cut = arrays[0].size - arrays[0].size % _ROWS**2
    terms = function(*[x[:cut].reshape(-1, _ROWS, _ROWS) for x in arrays])
    sums = _reduce((1,), *terms)
    again = _block_sums if sums[0].size > _SMALL else _sums_on_cpu
    total = again(lambda *x: x, sums)
    return _add(total, _sums_on_cpu(function, [x[cut:] for x in arrays])) if cut < arrays[0].size else total


def _add(x: Sequence[Array], y: Sequence[Array]) -> list[Array]:
    return [a + b for a, b in zip(x, y, strict=True)]


def _widen(x: Array) -> Array:
    """Return an array with its last axes merged, as few as make a long one."""
    axis = max(x.ndim - 1, 0)
    while axis and math.prod(x.shape[axis:]) < _MINOR:
        axis -= 1
    return x.reshape(*x.shape[:axis], math.prod(x.shape[axis:]))


@partial(custom_jvp, nondiff_argnums=(0,))
def _reduce(axes: tuple[int, ...], *terms: Array) -> tuple[Array, ...]:
    """Return the sums of some arrays over some axes, in one pass."""
    zeros = tuple(jnp.zeros((), x.dtype) for x in terms)
    return tuple(lax.reduce(terms, zeros, lambda x, y: tuple(a + b for a, b in zip(x, y, strict=True)), axes))


@_reduce.defjvp
def _reduce_jvp(axes: tuple[int, ...], terms: Any, tangents: Any) -> tuple[Any, Any]:
    """Differentiate the sums: JAX does not know that a reduction of several arrays is linear."""
    return _reduce(axes, *terms), tuple(x.sum(axes) for x in tangents)
