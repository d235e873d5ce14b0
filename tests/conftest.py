from __future__ import annotations

import pytest
import torch
from hypothesis import settings

settings.register_profile("borat", derandomize=True, deadline=None)
settings.load_profile("borat")

torch.set_num_threads(1)  # tests run side by side


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
