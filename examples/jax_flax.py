"""Flax: a TrainState whose apply_gradients forwards the loss to Optax, unlike that of Flax.

python examples/jax_flax.py

With Flax NNX, nnx.Optimizer forwards it: optimizer.update(model, grads, value=loss).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from sklearn.datasets import load_digits

from borat.jax import free_borat, free_borat_eval_params


class LossTrainState(TrainState):
    def apply_gradients(self, *, grads, value, **changes):
        updates, opt_state = self.tx.update(grads, self.opt_state, self.params, value=value)
        params = optax.apply_updates(self.params, updates)
        return self.replace(step=self.step + 1, params=params, opt_state=opt_state, **changes)

    @property
    def eval_params(self):
        return free_borat_eval_params(self.opt_state, self.params)


class Network(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.relu(nn.Dense(64)(x)))


@jax.jit
def train_step(state, x, y):
    def loss_of(params):
        scores = state.apply_fn({"params": params}, x)
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads, value=loss)


def main():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = jnp.asarray(x[order] / 16, jnp.float32), jnp.asarray(y[order])
    model = Network()
    params = model.init(jax.random.key(0), x[:1])["params"]
    state = LossTrainState.create(apply_fn=model.apply, params=params, tx=free_borat())
    for epoch in range(5):
        for batch in np.random.default_rng(epoch).permutation(1400).reshape(-1, 35):
            state = train_step(state, x[batch], y[batch])
    scores = model.apply({"params": state.eval_params}, x[1400:])
    print(f"test accuracy {(scores.argmax(1) == y[1400:]).mean():.1%}")


if __name__ == "__main__":
    main()
