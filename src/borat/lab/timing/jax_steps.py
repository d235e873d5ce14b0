"""Cost of a jitted step in JAX, beside Optax's AdamW and Schedule-Free AdamW."""

from __future__ import annotations

import statistics
import time
from importlib.util import find_spec
from typing import Any

import numpy as np

from borat.lab.timing.optimizers import GRADIENT_SETS, OptimizerCost, Progress, ignore, take_turns
from borat.lab.timing.shapes import shapes_of

BASE = "optax.adamw"


def measure_jax(model: str, rounds: int = 15, progress: Progress = ignore) -> list[OptimizerCost]:
    """Measure jitted steps on the parameter shapes of a model; nothing if JAX and Optax are not installed.

    A step is an update and its application, on buffers that are donated.
    """
    if find_spec("jax") is None or find_spec("optax") is None:
        return []
    import jax
    import optax

    from borat.jax import borat, free_borat

    rng = np.random.default_rng(0)
    shapes = shapes_of(model)

    def draw(scale: float) -> list[Any]:
        return [jax.numpy.asarray(scale * rng.standard_normal(shape, np.float32)) for shape in shapes]

    gradients = [draw(0.01) for _ in range(GRADIENT_SETS)]
    lr = 2.0 / sum(float((g**2).sum()) for g in gradients[0])  # with a loss of 1, the cap binds now and then
    transformations: dict[str, Any] = {
        BASE: optax.with_extra_args_support(optax.adamw(1e-6)),
        "optax.contrib.schedule_free_adamw": optax.contrib.schedule_free_adamw(1e-6),
        "borat, N = 3": borat(lr),
        "free_borat, N = 2": free_borat(2),
        "free_borat, N = 3": free_borat(3),
    }
    runs = {name: _Run(tx, draw(0.05), gradients) for name, tx in transformations.items()}
    size = sum(4 * int(np.prod(shape)) for shape in shapes)
    return [
        OptimizerCost(model, name, 1e3 * statistics.median(seconds), runs[name].state_bytes() / size)
        for name, seconds in take_turns(runs, rounds, progress).items()
    ]


class _Run:
    """A compiled step with its parameters and state."""

    def __init__(self, tx: Any, params: list[Any], gradients: list[list[Any]]) -> None:
        import jax
        import optax

        def step(params: Any, state: Any, gradients: Any, loss: Any) -> tuple[Any, Any]:
            updates, state = tx.update(gradients, state, params, value=loss)
            return optax.apply_updates(params, updates), state

        self._jax, self._gradients = jax, gradients
        self._step = jax.jit(step, donate_argnums=(0, 1))
        self._now = params, tx.init(params)

    def __call__(self, turn: int) -> float:
        """Take two batches, which complete a bundle of three, and return the mean of their times in seconds."""
        start = time.perf_counter()
        for i in range(2):
            self._now = self._step(*self._now, self._gradients[(turn + i) % GRADIENT_SETS], 1.0)
            self._jax.block_until_ready(self._now)  # type: ignore[no-untyped-call]
        return (time.perf_counter() - start) / 2

    def state_bytes(self) -> int:
        return sum(x.nbytes for x in self._jax.tree.leaves(self._now[1]))
