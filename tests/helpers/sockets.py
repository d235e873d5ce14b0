"""Listening sockets of processes, from Linux's /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""The addresses of this machine that no other can reach."""
needs_table = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads the system's table of sockets")


def listening(leader: int) -> set[str]:
    """Return the addresses at which a process and its descendants listen."""
    sockets = {link for pid in _family(leader) for link in _links(Path(f"/proc/{pid}/fd"))}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                found.add(local.split(":")[0])
    return found


def _family(leader: int) -> set[int]:
    parents, found = dict(_parents()), {leader}
    while children := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= children
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            yield int(path.parent.name), int(path.read_text().rpartition(")")[2].split()[1])


def _links(folder: Path) -> list[str]:
    try:
        return [os.readlink(path) for path in folder.iterdir()]  # noqa: PTH115 - the target is no path
    except OSError:  # the process has ended
        return []
