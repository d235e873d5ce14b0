"""Cost of an optimizer's call: time beside PyTorch's SGD and Adam, memory, and the share of the dual.

Machines are noisy, so all optimizers take turns in one run and are compared by the ratio of their medians.
"""

from __future__ import annotations

import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from borat import BORAT, FreeBORAT, solve_dual
from borat._native import library
from borat._numbers import dual
from borat._optim.base import LossOptimizer
from borat.lab.baselines import take_step
from borat.lab.timing.shapes import shapes_of

BUNDLE_SIZES = (2, 3, 5, 10)
WARM_UP = 2
"""Rounds that are not measured."""

GRADIENT_SETS = 3
"""Different gradients that are taken in turn, so that bundles have more than one piece in their support."""


PEERS = {
    "Schedule-Free AdamW": "schedulefree:AdamWScheduleFree",
    "Prodigy": "prodigyopt:Prodigy",
    "MoMo-Adam": "momo:MomoAdam",
}


@dataclass(frozen=True)
class OptimizerCost:
    """The cost of one optimizer on one set of parameters."""

    model: str
    optimizer: str
    milliseconds: float
    relative: float
    """Time per batch relative to fused SGD."""
    relative_to_default: float
    """Time per batch relative to PyTorch's default SGD."""
    relative_to_adamw: float
    """Time per batch relative to fused AdamW."""
    dual_share: float | None
    """Share of the call that the dual takes."""
    state: float
    """Bytes held for the next call, relative to those of the parameters."""


@dataclass(frozen=True)
class DualCost:
    """Microseconds to solve a dual with ``pieces`` pieces."""

    pieces: int
    solve_dual: float
    quadprog: float | None


# Optimizers


def measure_optimizers(
    model: str, rounds: int = 15, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[OptimizerCost]:
    """Measure SGD, Adam and BORAT on the parameter shapes of a model; ``progress`` gets done and total rounds."""
    torch.manual_seed(0)
    params = [torch.nn.Parameter(0.05 * torch.randn(shape)) for shape in shapes_of(model)]
    gradients = [[0.01 * torch.randn_like(p) for p in params] for _ in range(GRADIENT_SETS)]
    squared_norm = sum(float(g.square().sum()) for g in gradients[0])
    lr = 2.0 / squared_norm  # with a loss of 1, the cap binds for none and for all of the pieces in turn
    momentum: dict[str, Any] = {"lr": lr, "momentum": 0.9, "nesterov": True}
    optimizers: dict[str, torch.optim.Optimizer] = {
        "SGD (fused)": torch.optim.SGD(params, fused=True, **momentum),
        "SGD": torch.optim.SGD(params, **momentum),
        "AdamW (fused)": torch.optim.AdamW(params, lr=1e-6, fused=True),
        "AdamW": torch.optim.AdamW(params, lr=1e-6),
        **_peers(params),
    }
    for n in BUNDLE_SIZES:
        optimizers[f"BORAT, N = {n}"] = BORAT(params, lr=lr, bundle_size=n)
    for n in BUNDLE_SIZES:
        optimizers[f"FreeBORAT, N = {n}"] = FreeBORAT(params, n)
    times: dict[str, list[float]] = {name: [] for name in optimizers}
    duals: dict[str, list[float]] = {name: [] for name in optimizers}
    for turn in range(rounds + WARM_UP):
        for name, optimizer in shuffled(optimizers, turn):
            batches = max(optimizer.bundle_size - 1, 1) if isinstance(optimizer, BORAT) else 1
            with timed_dual() as dual:
                seconds = sum(
                    _time_step(optimizer, params, gradients[(turn + i) % GRADIENT_SETS]) for i in range(batches)
                )
            if turn >= WARM_UP:
                times[name].append(seconds / batches)
                duals[name].append(dual[0] / seconds)
        progress(turn + 1, rounds + WARM_UP)
    median = {name: statistics.median(values) for name, values in times.items()}
    parameter_bytes = sum(p.numel() * p.element_size() for p in params)
    return [
        OptimizerCost(
            model=model,
            optimizer=name,
            milliseconds=1e3 * median[name],
            relative=median[name] / median["SGD (fused)"],
            relative_to_default=median[name] / median["SGD"],
            relative_to_adamw=median[name] / median["AdamW (fused)"],
            dual_share=statistics.median(duals[name]) if isinstance(optimizer, LossOptimizer) else None,
            state=_state_bytes(optimizer) / parameter_bytes,
        )
        for name, optimizer in optimizers.items()
    ]


def shuffled(optimizers: dict[str, torch.optim.Optimizer], turn: int) -> list[tuple[str, torch.optim.Optimizer]]:
    """In another order at each turn: who comes after a relative finds its code in the caches."""
    order = list(optimizers.items())
    random.Random(turn).shuffle(order)
    return order


def _peers(params: list[torch.nn.Parameter]) -> dict[str, torch.optim.Optimizer]:
    """Those that people would use in place of FreeBORAT, as far as they are installed, as their authors ship them."""
    found: dict[str, torch.optim.Optimizer] = {}
    for name, place in PEERS.items():
        module, _, cls = place.partition(":")
        with suppress(ModuleNotFoundError):
            found[name] = getattr(import_module(module), cls)(params)
    if "Schedule-Free AdamW" in found:
        found["Schedule-Free AdamW"].train()  # type: ignore[attr-defined]
    return found


def _time_step(
    optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter], gradients: list[torch.Tensor]
) -> float:
    for p, g in zip(params, gradients, strict=True):
        p.grad = g
    loss = torch.tensor(1.0)
    start = time.perf_counter()
    take_step(optimizer, loss)
    return time.perf_counter() - start


@contextmanager
def timed_dual() -> Iterator[list[float]]:
    """Add up the seconds spent in the dual.

    It is patched here, for as long as is measured. PyTorch's ``record_function`` around it would stay in every step of
    every user, and costs more than a small dual itself, 6 against 3 microseconds, though no profiler listens.
    """
    seconds = [0.0]

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments)
            seconds[0] += time.perf_counter() - start
            return result

        return call

    with mock.patch.object(dual, "maximise", timed(dual.maximise)):
        yield seconds


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    tensors = [x for x in tree_leaves(list(optimizer.state.values())) if isinstance(x, torch.Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


# The dual


def measure_dual(sizes: tuple[int, ...] = (2, 3, 4, 5, 6, 8, 10, 16, 32), repeats: int = 100) -> list[DualCost]:
    """The time of the dual for random bundles, beside that of quadprog where it is installed."""
    rng = np.random.default_rng(0)
    results = []
    for n in sizes:
        problems = [_random_dual(n, rng) for _ in range(repeats)]
        results.append(
            DualCost(pieces=n, solve_dual=1e6 * _median_time(solve_dual, problems), quadprog=_time_quadprog(problems))
        )
    return results


def _random_dual(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The dual of a bundle with ``n - 1`` gradients and the bound."""
    gradients = rng.standard_normal((n, 64)) / 8
    gradients[0] = 0.0
    return gradients @ gradients.T, np.concatenate(([0.0], rng.uniform(0.2, 0.6, n - 1)))


def _median_time(solve: Callable[..., Any], problems: list[tuple[np.ndarray, np.ndarray]]) -> float:
    times = []
    for Q, b in problems:
        start = time.perf_counter()
        solve(Q, b)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _time_quadprog(problems: list[tuple[np.ndarray, np.ndarray]]) -> float | None:
    try:
        import quadprog
    except ImportError:
        return None

    def solve(Q: np.ndarray, b: np.ndarray) -> None:
        n = len(b)
        # quadprog needs a positive definite matrix, and the bound's row is zero
        quadprog.solve_qp(Q + 1e-10 * np.eye(n), b, np.hstack((np.ones((n, 1)), np.eye(n))), np.eye(n + 1)[0], 1)

    return 1e6 * _median_time(solve, problems)


def machine() -> str:
    """The machine and the versions, in one line."""
    return (
        f"{platform.machine()}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}; "
        f"Python {platform.python_version()}, PyTorch {torch.__version__}, NumPy {np.__version__}; "
        f"{'C kernels' if library else 'no C kernels'}"
    )
