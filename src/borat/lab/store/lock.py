"""One run at a time in a folder."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
"""Environment variables of a process's rank; the first has none, or 0."""


class InUseError(OSError):
    """Another process writes to the folder."""


@contextmanager
def exclusive(folder: Path, patience: float) -> Iterator[None]:
    """Hold a folder for this process, as often as it likes; the system frees it when the process dies.

    Where another process holds it, wait so many seconds. Of the processes that train one model together, the first
    holds it for all. The lock is beside the folder, which may not exist yet, and says who holds it.
    """
    if any(os.environ.get(rank, "0") != "0" for rank in RANKS):
        yield
        return
    path = lock_of(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, is_singleton=True)
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        raise InUseError(f"{folder} is in use by {path.read_text(encoding='utf-8')}: wait for it or stop it") from None
    try:
        # in place: what is locked is this very file, which a renamed one would replace
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        lock.release()


def lock_of(folder: Path) -> Path:
    """The file that is locked, written whenever the folder is taken."""
    folder = folder.absolute()
    return folder.parent / ".locks" / folder.name
