"""The algorithms' functions for JAX arrays, and their states as pytrees of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from borat._numbers.dual_batched import BatchedDual
from borat._numbers.ops import Ops


def number_type() -> Any:
    """Return the dtype of numbers: float64 if ``jax_enable_x64`` is on, otherwise float32."""
    return jnp.result_type(float)


def jax_ops(pieces: int) -> Ops:
    """Return the functions for JAX arrays, for duals of ``pieces`` pieces and a constant one."""
    arange = partial(np.arange, dtype=number_type())
    eps = float(jnp.finfo(number_type()).eps)  # type: ignore[no-untyped-call]
    return Ops(
        maximum=jnp.maximum,
        minimum=jnp.minimum,
        where=jnp.where,
        sqrt=jnp.sqrt,
        split=lambda x, sizes: jnp.split(x, list(accumulate(sizes))[:-1], axis=-1),
        join=lambda *parts: jnp.concatenate([jnp.ravel(part) for part in parts]),
        pad=lambda matrix: jnp.pad(matrix, (0, 1)),
        dual=BatchedDual(pieces + 1, arange, jnp.where, partial(jnp.max, axis=-1), eps=eps),
        index=jnp.arange(pieces),
    )


def stack(rows: Sequence[Sequence[Any]]) -> Any:
    """Stack rows of scalars into a matrix."""
    return jnp.stack([x for row in rows for x in row]).reshape(len(rows), -1)


def as_arrays(state: Any) -> Any:
    """Convert a new state of an algorithm to arrays: counts to integers, all others to :func:`number_type`."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(int if isinstance(x, int) else float)), state)


def take(function: Any, ops: Ops, state: Any, *args: Any, **options: Any) -> tuple[Any, Any]:
    """Apply a function of the algorithm to a state; return the new state, with the same dtypes, and the step."""
    with jax.default_matmul_precision("highest"):
        new, _, step = function(ops, state, *args, **options)
    return jax.tree.map(lambda x, old: jnp.asarray(x, old.dtype), new, state), step
