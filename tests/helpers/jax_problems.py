"""Small training problems in JAX for several tests: those of ``problems`` and of the golden trajectories."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from borat.jax import BoratState, borat, borat_eval_params, free_borat, free_borat_eval_params


def arrays_of(model: Any) -> list[jax.Array]:
    """Return the parameters of a PyTorch model."""
    return [jnp.asarray(p.detach().numpy()) for p in model.parameters()]


def data_of(batches: Any) -> tuple[jax.Array, jax.Array]:
    """Return the batches of a PyTorch test, stacked."""
    return tuple(jnp.stack([jnp.asarray(batch[i].numpy()) for batch in batches]) for i in range(2))


def cross_entropy(params: Any, x: jax.Array, labels: jax.Array, activation: Callable = jnp.tanh) -> jax.Array:
    """Return the loss of a network with two layers."""
    return optax.softmax_cross_entropy_with_integer_labels(outputs(params, x, activation), labels).mean()


def hinge(params: Any, x: jax.Array, labels: jax.Array, activation: Callable = jnp.tanh) -> jax.Array:
    """Return the multi-class hinge loss of a network with two layers."""
    scores = outputs(params, x, activation)
    true = jnp.take_along_axis(scores, labels[:, None], axis=1)
    others = scores + 1.0 - jax.nn.one_hot(labels, scores.shape[1])
    return (others.max(axis=1) - true[:, 0]).mean()


def outputs(params: Any, x: jax.Array, activation: Callable) -> jax.Array:
    weights, bias, last_weights, last_bias = jax.tree.leaves(params)
    return activation(x @ weights.T + bias) @ last_weights.T + last_bias


def make(method: str, bundle_size: int, *, radius: Any = None, **options: Any) -> Any:
    """Return a transformation; its projection is onto a ball."""
    projection = None if radius is None else partial(optax.projections.projection_l2_ball, scale=radius)
    if method == "free_borat":
        return free_borat(bundle_size, projection=projection, **options)
    return borat(bundle_size=bundle_size, projection=projection, **options)


@partial(jax.jit, static_argnames=("method", "bundle_size", "loss_of"))
def train(
    method: str, bundle_size: int, params: Any, data: Any, factors: Any, options: Any, loss_of: Callable = cross_entropy
) -> tuple[Any, ...]:
    """Take one step on each batch, with a factor on its loss; return parameters, results, numbers and losses."""
    tx = make(method, bundle_size, **options)

    def step(carry: Any, batch: Any) -> Any:
        params, state = carry
        *own, factor = batch
        loss, grads = jax.value_and_grad(lambda p: factor * loss_of(p, *own))(params)
        updates, state = tx.update(grads, state, params, value=loss)
        params = optax.apply_updates(params, updates)
        result = (borat_eval_params if isinstance(state, BoratState) else free_borat_eval_params)(state, params)
        return (params, state), (params, result, state.numbers, loss)

    return jax.lax.scan(step, (params, tx.init(params)), (*data, factors))[1]


def flat(trees: Any) -> np.ndarray:
    """Return stacked parameters as one vector for each step."""
    return np.concatenate([np.asarray(x).reshape(len(x), -1) for x in jax.tree.leaves(trees)], axis=1)
