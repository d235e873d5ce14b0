from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("borat", derandomize=True, deadline=None)
settings.load_profile("borat")

# Tests run side by side, and the number of threads decides about the last bit.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# Files that start many processes, the longest first, so that no worker is left with one of them in the end.
LONG = [
    "sweep",
    "examples",
    "package",
    "ray",
    "train_devices",
    "lab",
    "train",
    "distributed",
    "reproduce",
    "optimizer",
    "data_real",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {f"test_{name}": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONG)))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
