"""The C sources on random input, under two sanitizers; `make sanitize` tests more input."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None or shutil.which("cc") is None, reason="needs make and a C compiler")
def test_no_access_outside_the_tensors():
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    command = ["make", "sanitize", "ROUNDS=20"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("20 rounds, nothing wrong") == 2
