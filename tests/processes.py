"""Waiting for other processes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def count_group(leader: subprocess.Popen) -> int:
    """How many processes are in the group of one that was started with a group of its own."""
    groups = subprocess.run(["ps", "-e", "-o", "pgid="], capture_output=True, text=True, check=True).stdout.split()
    return groups.count(str(leader.pid))
