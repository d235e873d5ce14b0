"""Cost of an optimizer's step: time compared with PyTorch's SGD and Adam, memory, and the dual's share.

Timings are noisy, so all optimizers take turns in one run, and the ratios of their medians are compared.
"""

from __future__ import annotations

import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pkgutil import resolve_name
from timeit import timeit
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from borat import BORAT, FreeBORAT, solve_dual
from borat._native import library
from borat._numbers import dual
from borat._optim.base import LossOptimizer
from borat.lab.baselines import take_step
from borat.lab.tables import Table
from borat.lab.timing.shapes import shapes_of

T = TypeVar("T")

BUNDLE_SIZES = (2, 3, 5, 10)
DUAL_SIZES = (2, 3, 4, 5, 6, 8, 10, 16, 32)
WARM_UP = 2
"""Number of rounds before the measurement."""
GRADIENT_SETS = 3
"""Number of gradient sets, used in turn so that bundles have more than one piece in their support."""
PEERS = {
    "Schedule-Free AdamW": "schedulefree:AdamWScheduleFree",
    "Prodigy": "prodigyopt:Prodigy",
    "MoMo-Adam": "momo:MomoAdam",
}
"""Alternatives to FreeBORAT, in their authors' implementations."""


Progress = Callable[[int, int], None]
"""Called with the number of measurements done and their total number."""


@dataclass(frozen=True)
class OptimizerCost:
    """The cost of one optimizer on one set of parameters."""

    model: str
    optimizer: str
    milliseconds: float
    """Median time per batch."""
    state: float
    """Size of the state relative to that of the parameters."""
    dual_share: float | None = None
    """Share of the step's time that the dual takes."""


# Optimizers


def ignore(done: int, total: int) -> None:
    """Report no progress."""


def take_turns(measures: Mapping[str, Callable[[int], T]], rounds: int, progress: Progress) -> dict[str, list[T]]:
    """Call each function once per round, with the round's number; return the results after the warm-up."""
    results: dict[str, list[T]] = {name: [] for name in measures}
    for turn in range(rounds + WARM_UP):
        # in random order: an optimizer is faster right after a similar one, whose code is still in the caches
        for name, measure in random.Random(turn).sample(list(measures.items()), len(measures)):
            result = measure(turn)
            if turn >= WARM_UP:
                results[name].append(result)
        progress(turn + 1, rounds + WARM_UP)
    return results


def measure_optimizers(model: str, rounds: int = 15, progress: Progress = ignore) -> list[OptimizerCost]:
    """Measure all optimizers on the parameter shapes of a model."""
    torch.manual_seed(0)
    params = [torch.nn.Parameter(0.05 * torch.randn(shape)) for shape in shapes_of(model)]
    gradients = [[0.01 * torch.randn_like(p) for p in params] for _ in range(GRADIENT_SETS)]
    squared_norm = sum(float(g.square().sum()) for g in gradients[0])
    optimizers = _optimizers(params, lr=2.0 / squared_norm)  # with a loss of 1, the cap binds for some pieces only

    def measure(optimizer: torch.optim.Optimizer, turn: int) -> tuple[float, float]:
        """Return the seconds per batch, and the dual's share of them."""
        batches = max(optimizer.bundle_size - 1, 1) if isinstance(optimizer, BORAT) else 1
        sets = [gradients[(turn + i) % GRADIENT_SETS] for i in range(batches)]
        with timed_dual() as dual:
            seconds = sum(time_step(optimizer, params, grads, torch.tensor(1.0)) for grads in sets)
        return seconds / batches, dual[0] / seconds

    measures = {name: partial(measure, optimizer) for name, optimizer in optimizers.items()}
    parameter_bytes = sum(p.numel() * p.element_size() for p in params)
    costs = []
    for name, turns in take_turns(measures, rounds, progress).items():
        seconds, share = map(statistics.median, zip(*turns, strict=True))
        dual_share = share if isinstance(optimizers[name], LossOptimizer) else None
        state = state_size(optimizers[name]) / parameter_bytes
        costs.append(OptimizerCost(model, name, 1e3 * seconds, state, dual_share))
    return costs


def state_size(optimizer: torch.optim.Optimizer) -> int:
    """Return the size of an optimizer's state in bytes, without parameters that it refers to."""
    tensors = [x for x in tree_leaves(list(optimizer.state.values())) if isinstance(x, torch.Tensor)]
    storages = {storage.data_ptr(): storage.nbytes() for storage in (x.untyped_storage() for x in tensors)}
    params = {p.untyped_storage().data_ptr() for group in optimizer.param_groups for p in group["params"]}
    return sum(size for place, size in storages.items() if place not in params)


def _optimizers(params: list[torch.nn.Parameter], lr: float) -> dict[str, torch.optim.Optimizer]:
    momentum: dict[str, Any] = {"lr": lr, "momentum": 0.9, "nesterov": True}
    found: dict[str, torch.optim.Optimizer] = {
        "SGD (fused)": torch.optim.SGD(params, fused=True, **momentum),
        "SGD": torch.optim.SGD(params, **momentum),
        "AdamW (fused)": torch.optim.AdamW(params, lr=1e-6, fused=True),
        "AdamW": torch.optim.AdamW(params, lr=1e-6),
    }
    for name, place in PEERS.items():
        with suppress(ModuleNotFoundError):
            found[name] = resolve_name(place)(params)
    if "Schedule-Free AdamW" in found:
        found["Schedule-Free AdamW"].train()  # type: ignore[attr-defined]
    found |= {f"BORAT, N = {n}": BORAT(params, lr=lr, bundle_size=n) for n in BUNDLE_SIZES}
    return found | {f"FreeBORAT, N = {n}": FreeBORAT(params, n) for n in BUNDLE_SIZES}


def time_step(
    optimizer: torch.optim.Optimizer,
    params: Sequence[torch.nn.Parameter],
    gradients: Sequence[torch.Tensor],
    loss: torch.Tensor,
) -> float:
    """Return the seconds that one step takes."""
    for p, g in zip(params, gradients, strict=True):
        p.grad = g
    start = now(loss.device)
    take_step(optimizer, loss)
    return now(loss.device) - start


def now(device: torch.device) -> float:
    """Return the time after a device sync."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@contextmanager
def timed_dual() -> Iterator[list[float]]:
    """Yield a list whose only entry is the total number of seconds spent in the dual.

    The dual is patched only for the measurement. A permanent ``record_function`` around it would slow down every step:
    it takes 6 microseconds without a profiler, a small dual takes 3.
    """
    seconds, maximise = [0.0], dual.maximise

    def timed(*arguments: Any) -> Any:
        start = time.perf_counter()
        result = maximise(*arguments)
        seconds[0] += time.perf_counter() - start
        return result

    with mock.patch.object(dual, "maximise", timed):
        yield seconds


# The dual


def measure_dual() -> Table:
    """Return the median time of the dual of random bundles, and of quadprog if it is installed."""
    rng = np.random.default_rng(0)
    solvers = (solve_dual, *([_solve_by_quadprog] if find_spec("quadprog") else []))
    rows = []
    for n in DUAL_SIZES:
        problems = []
        for _ in range(100):  # bundles with n - 1 gradients and the bound
            gradients = rng.standard_normal((n, 64)) / 8
            gradients[0] = 0.0
            problems.append((gradients @ gradients.T, np.concatenate(([0.0], rng.uniform(0.2, 0.6, n - 1)))))
        times = [[timeit(partial(solve, *problem), number=1) for problem in problems] for solve in solvers]
        rows.append((str(n), *(f"{1e6 * statistics.median(seconds):.0f}" for seconds in times)))
    return Table("The dual", ("pieces", "solve_dual, µs", "quadprog, µs")[: 1 + len(solvers)], rows)


def _solve_by_quadprog(Q: np.ndarray, b: np.ndarray) -> None:
    import quadprog

    n = len(b)
    # quadprog needs a positive definite matrix, but the row of the bound is zero
    quadprog.solve_qp(Q + 1e-10 * np.eye(n), b, np.hstack((np.ones((n, 1)), np.eye(n))), np.eye(n + 1)[0], 1)


def machine() -> str:
    """Return a description of the machine and the versions in one line."""
    return (
        f"{platform.machine()}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}; "
        f"Python {platform.python_version()}, PyTorch {torch.__version__}, NumPy {np.__version__}; "
        f"{'C kernels' if library else 'no C kernels'}"
    )
