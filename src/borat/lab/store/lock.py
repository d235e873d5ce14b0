"""A lock that lets one process at a time write to the folder of a run."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
"""Environment variables for the rank of a process; the first process has none, or 0."""


class InUseError(OSError):
    """Another process is writing to the folder."""


@contextmanager
def exclusive(folder: Path, patience: float) -> Iterator[None]:
    """Lock a folder for this process, which may lock it repeatedly; the system releases it when the process dies.

    If another process holds the lock, wait for at most ``patience`` seconds. Of the processes that train one model
    together, the first holds it for all. The lock file is beside the folder, which may not exist yet, and names its
    holder.
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
        # written in place: renaming would replace the locked file
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        lock.release()


def lock_of(folder: Path) -> Path:
    """Return the lock file, which is written whenever the folder is locked."""
    folder = folder.absolute()
    return folder.parent / ".locks" / folder.name
