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


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
