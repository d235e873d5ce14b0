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
# JAX has two devices, for tests of sharded arrays, and compiles in a sixth of the time.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1"
)

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
