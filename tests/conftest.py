from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("borat", derandomize=True, deadline=None)
settings.load_profile("borat")

# Tests run in parallel, and the number of threads affects the last bit.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

LONG = (
    "test_distributed",
    "test_edges",
    "test_examples",
    "test_package",
    "test_ray",
    "test_sweep",
    "test_train",
    "test_train_devices",
)
"""Files that take a minute or so."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long files first, so that no core is idle at the end."""
    items.sort(key=lambda item: item.path.stem not in LONG)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
