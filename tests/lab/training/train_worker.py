"""The work of one of several processes that train together in test_train_devices.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from borat.lab.config import Execution, RunConfig
from borat.lab.training.train import train

CONFIG = RunConfig(
    optimizer="borat", bundle_size=4, lr=0.5, radius=20.0, epochs=2, train_limit=330, batch_size=32, precision="64"
)


def config_of(optimizer: str) -> RunConfig:
    return CONFIG.replace(optimizer=optimizer, lr=0.5 if optimizer in ("borat", "alig", "sgd") else 0.01)


def train_pairs(folder: Path, pairs: Sequence[str]) -> None:
    torch.set_num_threads(1)
    for pair in pairs:
        strategy, optimizer, *_ = pair.split(":")
        execution = Execution(devices=2, strategy=strategy, accelerator="cpu", tensorboard=False)
        train(config_of(optimizer), folder / pair, execution=execution)
