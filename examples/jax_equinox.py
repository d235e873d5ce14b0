"""Equinox: the parameters are the arrays of the module, as for every Optax transformation.

python examples/jax_equinox.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

from borat.jax import free_borat, free_borat_eval_params

tx = free_borat()


@eqx.filter_value_and_grad
def loss_and_grads(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y).mean()


@eqx.filter_jit
def train_step(model, state, x, y):
    loss, grads = loss_and_grads(model, x, y)
    updates, state = tx.update(grads, state, eqx.filter(model, eqx.is_inexact_array), value=loss)
    return eqx.apply_updates(model, updates), state


def main():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = jnp.asarray(x[order] / 16, jnp.float32), jnp.asarray(y[order])
    model = eqx.nn.MLP(64, 10, width_size=64, depth=1, key=jax.random.key(0))
    state = tx.init(eqx.filter(model, eqx.is_inexact_array))
    for epoch in range(5):
        for batch in np.random.default_rng(epoch).permutation(1400).reshape(-1, 35):
            model, state = train_step(model, state, x[batch], y[batch])
    params, static = eqx.partition(model, eqx.is_inexact_array)
    result = eqx.combine(free_borat_eval_params(state, params), static)  # evaluate and save this
    print(f"test accuracy {(jax.vmap(result)(x[1400:]).argmax(1) == y[1400:]).mean():.1%}")


if __name__ == "__main__":
    main()
