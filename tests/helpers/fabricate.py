"""Made-up folders of runs, for tests of reports that need no training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from borat.lab.config import RunConfig
from borat.lab.store.run import Metrics, Run

LRS = (0.01, 0.1, 1.0, 10.0)
RADII = (50.0, 100.0, 150.0, 200.0, 250.0)
METHODS = (
    {"optimizer": "sgd"},
    {"optimizer": "alig"},
    {"optimizer": "borat", "bundle_size": 3},
    {"optimizer": "borat", "bundle_size": 5},
)
KINDS = {2: ("SGD", "ALIG"), 3: ("SGD", "ALIG", "ESGD", "MAX2", "MAX3"), 5: ("0", "0+B", "0+1+B", "1+2", "0+1+2+3+B")}

EXPERIMENT = {
    "title": "Robustness",
    "source": "Figure 5",
    "scale": "mini",
    "tables": [
        {"title": "Accuracy, %", "head": ["method", "ours", "paper"], "rows": [["SGD", "**75.4 ± 1.2**", "78.3"]]},
        {"title": "What the paper says", "head": ["claim", "here"], "rows": [["50 % & more", "supported"]]},
    ],
}
"""Files that ``borat reproduce`` writes next to its runs."""


def write_run(folder: Path, config: RunConfig, *, accuracy: float, status: str = "finished", epochs: int = 0) -> Run:
    """Write a run whose accuracy rises to the given one; a diverged run ends halfway, with an infinite loss."""
    length = epochs or (config.epochs if status == "finished" else max(1, config.epochs // 2))
    run = Run.create(folder / config.digest, config)
    records = [_epoch(config, accuracy, i, length) for i in range(length)]
    if status == "diverged":
        records[-1] |= {
            "train_loss": math.nan,
            "validation_loss": math.inf,
            "validation_accuracy": 0.1,
            "step_size": None,
        }
    result = (
        {} if status == "running" else {"test_accuracy": 0.1 if status == "diverged" else accuracy, "test_loss": 1.0}
    )
    run.write_metrics(Metrics(status, records, result))
    return run


def _epoch(config: RunConfig, accuracy: float, epoch: int, length: int) -> dict[str, Any]:
    speed = 2.0 + len(config.optimizer) % 3 + 0.3 * config.bundle_size + 0.1 * config.seed
    progress = 1.0 - math.exp(-speed * (epoch + 1) / length)
    wobble = 0.01 * math.sin(5.0 * epoch + config.seed + config.lr)
    record: dict[str, Any] = {
        "epoch": epoch,
        "seconds": 1.5 + 0.1 * config.seed,
        "train_loss": 2.3 * math.exp(-4.0 * accuracy * progress) + 0.01 + abs(wobble),
        "train_accuracy": accuracy * progress,
        "validation_loss": 2.3 - 2.0 * accuracy * progress,
        "validation_accuracy": accuracy * progress + wobble,
        "kinds": {},
    }
    size = {"alig": 2, "borat": config.bundle_size}.get(config.optimizer)
    if size is not None:
        weights = [1.0 + (i + 1) * progress for i in range(len(KINDS[size]))]
        record["kinds"] = {kind: round(100 * w / sum(weights)) for kind, w in zip(KINDS[size], weights, strict=True)}
        record["step_size"] = config.lr / (1.0 + (5.0 + size) * config.lr * progress)
        record["dropped_batches"] = 0
    return record


def write_grid(
    folder: Path,
    lrs: Sequence[float] = LRS,
    radii: Sequence[float | None] = RADII,
    methods: Sequence[dict[str, Any]] = METHODS,
    seeds: int = 1,
    **common: Any,
) -> None:
    """Write the paper's grid: larger bundles tolerate larger learning rates, and SGD diverges at the largest."""
    base = {"data": "cifar100", "model": "wrn-40-4", **common}
    for method, lr, (i, radius), seed in product(methods, lrs, enumerate(radii), range(seeds)):
        config = RunConfig(**{**base, **method, "lr": lr, "radius": radius, "seed": seed})
        strength = {"sgd": 0, "alig": 1}.get(config.optimizer, config.bundle_size)
        excess = max(0.0, math.log10(lr) + 1.0 - 0.5 * strength)
        accuracy = 0.77 - 0.25 * excess - 0.01 * abs(i - 2) + 0.004 * seed - 0.03 * (lr < 0.05)
        diverged = strength == 0 and lr >= 10.0 and i >= len(radii) - 2
        write_run(folder, config, accuracy=accuracy, status="diverged" if diverged else "finished")


def find_runs(folder: Path) -> list[Run]:
    """Return all runs below a folder, in the order of their names."""
    return [Run(path.parent) for path in sorted(folder.rglob("config.json"))]
