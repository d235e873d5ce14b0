"""Cost of a jitted step in JAX, beside Optax's AdamW and Schedule-Free AdamW."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from borat.lab.tables import Table
from borat.lab.timing.optimizers import GRADIENT_SETS, WARM_UP
from borat.lab.timing.shapes import shape_summary, shapes_of

BASE = "optax.adamw"


@dataclass(frozen=True)
class JaxCost:
    """The cost of one transformation on one set of parameters."""

    model: str
    transformation: str
    milliseconds: float
    relative: float
    """Time per batch relative to ``optax.adamw``."""
    state: float
    """Bytes of the state, relative to those of the parameters."""


def measure_jax(
    model: str, rounds: int = 15, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[JaxCost]:
    """Measure jitted steps on the parameter shapes of a model; nothing if JAX and Optax are not installed.

    A step is an update and its application, on buffers that are donated. All take turns, as in PyTorch's benchmark.
    """
    if find_spec("jax") is None or find_spec("optax") is None:
        return []
    import jax
    import optax

    from borat.jax import borat, free_borat

    rng = np.random.default_rng(0)
    shapes = shapes_of(model)
    gradients = [_arrays(rng, shapes, 0.01) for _ in range(GRADIENT_SETS)]
    lr = 2.0 / sum(float((g**2).sum()) for g in gradients[0])  # with a loss of 1, the cap binds now and then
    makers: dict[str, Callable[[], Any]] = {
        BASE: lambda: optax.with_extra_args_support(optax.adamw(1e-6)),
        "optax.contrib.schedule_free_adamw": lambda: optax.contrib.schedule_free_adamw(1e-6),
        "borat, N = 3": lambda: borat(lr),
        "free_borat, N = 2": lambda: free_borat(2),
        "free_borat, N = 3": lambda: free_borat(3),
    }
    runs = {name: _Run(make(), _arrays(rng, shapes, 0.05)) for name, make in makers.items()}
    for turn in range(rounds + WARM_UP):
        order = list(runs.values())
        random.Random(turn).shuffle(order)
        for run in order:
            run.take(gradients, turn)
        progress(turn + 1, rounds + WARM_UP)
    median = {name: statistics.median(run.seconds[WARM_UP:]) for name, run in runs.items()}
    size = sum(4 * int(np.prod(shape)) for shape in shapes)
    return [
        JaxCost(model, name, 1e3 * median[name], median[name] / median[BASE], run.state_bytes(jax) / size)
        for name, run in runs.items()
    ]


class _Run:
    """A compiled step with its parameters and state."""

    def __init__(self, tx: Any, params: list[Any]) -> None:
        import jax
        import optax

        def step(params: Any, state: Any, gradients: Any, loss: Any) -> tuple[Any, Any]:
            updates, state = tx.update(gradients, state, params, value=loss)
            return optax.apply_updates(params, updates), state

        self._step = jax.jit(step, donate_argnums=(0, 1))
        self._now = params, tx.init(params)
        self.seconds: list[float] = []

    def take(self, gradients: list[list[Any]], turn: int) -> None:
        """Take two batches, which complete a bundle of three, and note the mean of their times."""
        import jax

        start = time.perf_counter()
        for i in range(2):
            self._now = self._step(*self._now, gradients[(turn + i) % GRADIENT_SETS], 1.0)
            jax.block_until_ready(self._now)  # type: ignore[no-untyped-call]
        self.seconds.append((time.perf_counter() - start) / 2)

    def state_bytes(self, jax: Any) -> int:
        return sum(x.nbytes for x in jax.tree.leaves(self._now[1]))


def _arrays(rng: np.random.Generator, shapes: list[tuple[int, ...]], scale: float) -> list[Any]:
    import jax.numpy as jnp

    return [jnp.asarray(scale * rng.standard_normal(shape, np.float32)) for shape in shapes]


def jax_tables(costs: list[JaxCost]) -> list[Table]:
    """Return one table for each model."""
    result = []
    for model in dict.fromkeys(cost.model for cost in costs):
        rows: list[tuple[str, ...]] = [
            (cost.transformation, f"{cost.milliseconds:.2f}", f"{cost.relative:.2f}", f"{cost.state:.2f}")
            for cost in costs
            if cost.model == model
        ]
        head = ("transformation", "ms per batch", "/ optax.adamw", "state / parameters")
        result.append(Table(f"In JAX, {model}: {shape_summary(model)}", head, rows))
    return result
