"""JAX without a framework: pass the loss to update, and evaluate at free_borat_eval_params.

python examples/jax_loop.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

from borat.jax import free_borat, free_borat_eval_params


def forward(params, x):
    hidden = jax.nn.relu(x @ params["weights"] + params["bias"])
    return hidden @ params["last_weights"] + params["last_bias"]


def loss_of(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(forward(params, x), y).mean()


tx = free_borat()  # instead of optax.adam(learning_rate)


@jax.jit
def train_step(params, state, x, y):
    loss, grads = jax.value_and_grad(loss_of)(params, x, y)
    updates, state = tx.update(grads, state, params, value=loss)  # instead of tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state


def main():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = jnp.asarray(x[order] / 16, jnp.float32), jnp.asarray(y[order])
    first, last = jax.random.split(jax.random.key(0))
    params = {
        "weights": jax.random.normal(first, (64, 64)) / 8,
        "bias": jnp.zeros(64),
        "last_weights": jax.random.normal(last, (64, 10)) / 8,
        "last_bias": jnp.zeros(10),
    }
    state = tx.init(params)
    for epoch in range(5):
        for batch in np.random.default_rng(epoch).permutation(1400).reshape(-1, 35):
            params, state = train_step(params, state, x[batch], y[batch])
    result = free_borat_eval_params(state, params)  # evaluate and save this instead of params
    print(f"test accuracy {(forward(result, x[1400:]).argmax(1) == y[1400:]).mean():.1%}")


if __name__ == "__main__":
    main()
