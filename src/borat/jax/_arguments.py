"""Arguments of the transformations: options, which may be traced, and the parameters and loss of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from borat._checks import check_count, is_number
from borat._numbers.dual_batched import LIMIT
from borat.jax._numbers import number_type

Params = Any
"""A pytree of arrays."""
Projection = Callable[[Params], Params]
Option = Any
"""A number, an array without dimensions, or a tree of them that is a prefix of the parameters' tree."""


# Options


def check_number(name: str, option: Option, allowed: str, is_allowed: Callable[[float], bool]) -> None:
    """Raise an error for numbers outside a range. Arrays are not checked because they may be traced."""
    for x in jax.tree.leaves(option, is_leaf=lambda x: x is None):
        if not isinstance(x, (jax.Array, np.ndarray)) and not (is_number(x) and is_allowed(x)):
            raise ValueError(f"{name} must be {allowed}, got {x!r}")


def check_common(
    bundle_size: Any, minimum: int, learning_rate: Any, lower_bound: Any, projection: Projection | None
) -> None:
    """Check the options that all methods have."""
    static = "; if inject_hyperparams made an array of it, name it in static_args"
    if isinstance(bundle_size, jax.Array):
        raise ValueError(f"bundle_size must be an integer, got an array{static}")
    check_count("bundle_size", bundle_size, minimum=minimum)
    if bundle_size > LIMIT:
        raise ValueError(f"bundle_size must be at most {LIMIT} in JAX, got {bundle_size}")
    if not callable(learning_rate):
        check_number("learning_rate", learning_rate, "a finite number of at least 0", lambda x: 0.0 <= x < math.inf)
    check_number("lower_bound", lower_bound, "a finite number", math.isfinite)
    if projection is not None and not callable(projection):
        raise ValueError(f"projection must be None or a function of the parameters, got {projection!r}{static}")


def by_leaf(option: Option, params: Params) -> Array:
    """Return the value of an option for each array of the parameters, as a vector."""
    values = jax.tree.leaves(jax.tree.broadcast(option, params))
    return jnp.stack([jnp.asarray(x, number_type()) for x in values])


def at_step(learning_rate: Any, count: Array) -> Option:
    """Return the learning rate at a step, which a schedule may determine."""
    return learning_rate(count) if callable(learning_rate) else learning_rate


# The batch


def check_params(name: str, params: Params) -> None:
    """Raise an error unless all parameters are real floating-point numbers of at least 16 bits."""
    for path, x in jax.tree.leaves_with_path(params):
        dtype = getattr(x, "dtype", type(x).__name__)
        if str(dtype) not in ("float", "float16", "bfloat16", "float32", "float64"):
            raise ValueError(
                f"{name} needs real parameters of float16, bfloat16, float32 or float64, got {dtype} at "
                f"params{jax.tree_util.keystr(path)}: split complex arrays into two, "
                "and leave out others with optax.masked"
            )


def flatten(
    name: str, grads: Params, state: Any, kind: type, kept: int, params: Params | None, value: Any
) -> tuple[list[Array], list[Array], Any]:
    """Return the arrays of the parameters and of the gradients, and the structure of their tree.

    ``kind`` is the type of the state, and ``kept`` the number of gradients that it keeps.

    Raises:
        ValueError: if an argument is missing, has the wrong type, or does not fit the parameters.
    """
    usage = "call update(grads, state, params, value=loss)"
    if params is None:
        raise ValueError(f"{name} needs the parameters: {usage}")
    if value is None:
        raise ValueError(
            f"{name} needs the loss of the batch: {usage}. Transformations of "
            "Optax such as chain pass it on; if a training loop calls update for you, it must pass the loss as well"
        )
    if not isinstance(state, kind):
        raise ValueError(f"state must be a {kind.__name__}, got a {type(state).__name__}: {usage}")
    if not isinstance(value, (int, float, np.generic, np.ndarray, jax.Array)) or jnp.iscomplexobj(value):
        raise ValueError(f"value must be a real number or an array without dimensions, got {value!r}")
    if jnp.ndim(value):
        raise ValueError(f"value must be a number or an array without dimensions, got shape {jnp.shape(value)}")
    check_params(name, params)
    tree: Any = jax.tree.structure(params)
    gradients = tree.flatten_up_to(grads)
    for (path, x), g in zip(jax.tree.leaves_with_path(params), gradients, strict=True):
        if g is None or jnp.shape(g) != jnp.shape(x):
            got = "None" if g is None else f"shape {jnp.shape(g)}"
            place = jax.tree_util.keystr(path)
            raise ValueError(f"grads{place} must have the shape {jnp.shape(x)} of the parameter, got {got}")
        if jnp.iscomplexobj(g):
            raise ValueError(f"grads{jax.tree_util.keystr(path)} must be real, got {g.dtype}")
    _check_state(state, kept, params, tree)
    return [jnp.asarray(x) for x in jax.tree.leaves(params)], [jnp.asarray(g) for g in gradients], tree


def _check_state(state: Any, kept: int, params: Params, tree: Any) -> None:
    """Raise an error if a state belongs to another bundle size or to other parameters."""
    if len(state.gradients) != kept:
        raise ValueError(
            f"state must keep {kept} gradients for this bundle_size, got {len(state.gradients)}: "
            "it was made with another bundle_size"
        )
    trees = [(field, getattr(state, field, None)) for field in ("centre", "rms", "velocity")]
    trees += [("gradients", row) for row in state.gradients]
    for field, values in trees:
        arrays = [] if values is None else tree.flatten_up_to(values)
        for (path, x), own in zip(jax.tree.leaves_with_path(params), arrays, strict=values is not None):
            if jnp.shape(own) != jnp.shape(x):
                raise ValueError(
                    f"state.{field} must have the shape {jnp.shape(x)} of params{jax.tree_util.keystr(path)}, "
                    f"got {jnp.shape(own)}: it was made for other parameters"
                )


def mean_loss(value: Any, axis_name: Any) -> Array:
    """Return the loss of a batch, averaged over the devices of an axis if it has a name."""
    loss = jnp.asarray(value, number_type())
    return loss if axis_name is None else jax.lax.pmean(loss, axis_name)  # type: ignore[no-untyped-call]


# The state


def is_masked(x: Any) -> bool:
    """Return True for Optax's placeholder for parameters that belong to another transformation."""
    return isinstance(x, optax.MaskedNode)


def find_states(kind: type, state: Any) -> list[Any]:
    """Return the states of a kind within the state of a transformation.

    Raises:
        ValueError: if there is none.
    """
    found = [x for x in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, kind)) if isinstance(x, kind)]
    if not found:
        raise ValueError(f"state must contain a {kind.__name__}, got a {type(state).__name__} without one")
    return found
