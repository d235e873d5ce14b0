"""Passes over the parameters in JAX, one array of the parameters' tree at a time.

These are the operations of :mod:`borat._vectors` as pure functions. What a dropped batch leaves unchanged is a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from borat.jax._numbers import number_type

_BLOCK = 1024
"""Least number of elements that are added up one after the other; the sums of blocks are added up pairwise."""


def precise_type(x: Array) -> Any:
    """Return the dtype of sums of an array's elements: at least float32."""
    return jnp.promote_types(x.dtype, jnp.float32)


def longest_step(params: Sequence[Array]) -> float:
    """Return the length of the longest step that all parameters can take."""
    return min(float(jnp.finfo(p.dtype).max) for p in params)  # type: ignore[no-untyped-call]


def where(condition: Any, new: Sequence[Array], old: Sequence[Array]) -> list[Array]:
    """Return the new arrays where the condition is true, in the dtypes of the old ones."""
    return [jnp.where(condition, x.astype(y.dtype), y) for x, y in zip(new, old, strict=True)]


def keep(rows: Sequence[Array], g: Array, row: Array, ok: Array) -> list[Array]:
    """Return the kept gradients with the new one in its row, unless the batch is dropped."""
    return [jnp.where(ok & (row == i), g.astype(old.dtype), old) for i, old in enumerate(rows)]


def gram_row(rows: Sequence[Array], g: Array, n: Array) -> Array:
    """Return ``<g, g_k>`` for the kept gradients ``k < n``, then ``<g, g>``; later entries are arbitrary."""
    g = g.astype(precise_type(g))
    products = jnp.stack(_sums([row * g for row in (*rows, g)]))
    return jnp.where(jnp.arange(len(products)) < n, products, products[-1])


def combine(coefficients: Array, pieces: Sequence[Array]) -> Array:
    """Return the sum of coefficient times gradient."""
    c = coefficients.astype(precise_type(pieces[0]))
    total: Array = sum(c[i] * g.astype(c.dtype) for i, g in enumerate(pieces))  # type: ignore[assignment]
    return total


def new_rms(rms: Array, g: Array, beta2: Any) -> Array:
    """Return the root of the mean square of the gradients, with a new one."""
    beta2 = jnp.asarray(beta2, rms.dtype)
    return jnp.sqrt(beta2 * rms**2 + (1.0 - beta2) * g.astype(rms.dtype) ** 2)


def metric_products(pieces: Sequence[Array], y: Array, z: Array, D: Array) -> Array:
    """Return the inner products of FreeBORAT's pieces: see :func:`borat._numbers.rolling.columns`."""
    *G, y, z = (x.astype(D.dtype) for x in (*pieces, y, z))
    inverse = 1.0 / D
    scaled, n = [g * inverse for g in G], len(G)
    lower = [(i, j) for i in range(n) for j in range(i + 1)]
    once, twice = [G[i] * scaled[j] for i, j in lower], [scaled[i] * scaled[j] for i, j in lower]
    apart = G[-1] * (z - y) + 0.0 * D  # NaN, and so a dropped batch, if a square has overflowed
    sums = jnp.stack(_sums([*once, *twice, *(g * z for g in G), apart]))
    place = [lower.index((max(i, j), min(i, j))) for i in range(n) for j in range(n)]  # both matrices are symmetric
    return sums[jnp.asarray([*place, *(len(lower) + k for k in place), *range(2 * len(lower), len(sums))])]


def metric_move(pieces: Sequence[Array], y: Array, z: Array, D: Array, coefficients: Array, decay: Array) -> Array:
    """Return the centre after a step: ``z - sum of coefficient * gradient / D - decay * y``."""
    return (z - combine(coefficients, pieces) / D - decay.astype(D.dtype) * y).astype(z.dtype)


def follow(y: Array, z: Array, centre: Array, average: Sequence[Any]) -> Array:
    """Return ``y`` after the centre has moved from ``z``.

    In the average ``x = z + (y - z) / beta`` the new centre gets the weight ``1 - pull``, so that
    ``y' = z' + pull * (ratio * (y - z) - beta * (z' - z))``, where ``ratio`` is 1 unless ``beta`` has changed.
    """
    pull, ratio, beta = (jnp.asarray(x, precise_type(y)) for x in average)
    y, z, centre = (x.astype(pull.dtype) for x in (y, z, centre))
    return centre + pull * (ratio * (y - z) - beta * (centre - z))


def _sums(terms: Sequence[Array]) -> list[Array]:
    """Return the sum of each array, in one pass over them all."""
    first, axis, size = terms[0], terms[0].ndim, 1
    while axis and size < _BLOCK:
        axis -= 1
        size *= first.shape[axis]
    zeros = (jnp.zeros((), first.dtype),) * len(terms)
    blocks = lax.reduce(tuple(terms), zeros, _add, tuple(range(axis, first.ndim)))
    return [x.sum().astype(number_type()) for x in blocks]


def _add(x: Sequence[Array], y: Sequence[Array]) -> tuple[Array, ...]:
    return tuple(a + b for a, b in zip(x, y, strict=True))
