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


def count_group(leader: subprocess.Popen, word: str = "") -> int:
    """How many processes, with this in their command, are in the group of one that has a group of its own."""
    command = ["ps", "-e", "-o", "pgid=,args="]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return sum(line.split()[0] == str(leader.pid) and word in line for line in lines)
