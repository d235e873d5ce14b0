"""Cost of a jitted step in JAX, beside Optax's AdamW and Schedule-Free AdamW."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from borat.lab.timing.optimizers import GRADIENT_SETS, OptimizerCost, Progress, ignore, take_turns
from borat.lab.timing.shapes import shapes_of

BASE = "optax.adamw"


def measure_jax(model: str, rounds: int = 15, progress: Progress = ignore) -> list[OptimizerCost]:
    """Measure jitted steps on the parameter shapes of a model; return nothing without JAX and Optax.

    A step computes an update and applies it, with donated buffers.
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
    lr = 2.0 / sum(float((g**2).sum()) for g in gradients[0])  # with a loss of 1, the cap binds for some pieces only
    transformations: dict[str, Any] = {
        BASE: optax.with_extra_args_support(optax.adamw(1e-6)),
        "optax.contrib.schedule_free_adamw": optax.contrib.schedule_free_adamw(1e-6),
        "borat, N = 3": borat(lr),
        "free_borat, N = 2": free_borat(2),
        "free_borat, N = 3": free_borat(3),
    }
    size = sum(4 * int(np.prod(shape)) for shape in shapes)

    def runner(tx: Any) -> Callable[[int], tuple[float, int]]:
        @partial(jax.jit, donate_argnums=(0, 1))
        def step(params: Any, state: Any, gradients: Any, loss: Any) -> tuple[Any, Any]:
            updates, state = tx.update(gradients, state, params, value=loss)
            return optax.apply_updates(params, updates), state

        params = draw(0.05)
        now = params, tx.init(params)

        def measure(turn: int) -> tuple[float, int]:
            """Take two batches, which complete a bundle of three; return the mean seconds and the state's bytes."""
            nonlocal now
            start = time.perf_counter()
            for i in range(2):
                now = step(*now, gradients[(turn + i) % GRADIENT_SETS], 1.0)
                jax.block_until_ready(now)  # type: ignore[no-untyped-call]
            return (time.perf_counter() - start) / 2, sum(x.nbytes for x in jax.tree.leaves(now[1]))

        return measure

    measures = {name: runner(tx) for name, tx in transformations.items()}
    return [
        OptimizerCost(model, name, 1e3 * statistics.median(seconds for seconds, _ in turns), turns[-1][1] / size)
        for name, turns in take_turns(measures, rounds, progress).items()
    ]
