"""On-disk cache of decoded files, so that each is decoded only once."""

from __future__ import annotations

import hashlib
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from borat.lab.files import write_atomically

VERSION = 1
"""Version of the cache, part of every key; increment it when decoding changes."""

Tensors = dict[str, Tensor]


def cached(name: str, identity: Any, make: Callable[[], Tensors]) -> Tensors:
    """Return the tensors that ``make`` returns, cached by ``identity``.

    The cache is the folder ``$BORAT_CACHE``, by default ``~/.cache/borat``. ``identity`` holds the path, size and
    modification time of the source files, so that changed files are read again; if it is empty, nothing is cached. A
    damaged cache file is replaced. If the folder cannot be written, a warning is issued.
    """
    if not identity:
        return make()
    key = hashlib.sha256(repr((VERSION, identity)).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("BORAT_CACHE") or Path.home() / ".cache" / "borat")
    path = folder / f"{name}-{key}.pt"
    try:
        return torch.load(path, mmap=True, weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError):
        tensors = make()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda temporary: torch.save(tensors, temporary))
    except OSError as error:
        warnings.warn(f"the decoded {name} cannot be cached in {folder}: {error}", stacklevel=2)
    return tensors


def identify(path: Path) -> tuple[str, int, int]:
    """Return the path, size and modification time of a file."""
    status = path.stat()
    return str(path.resolve()), status.st_size, status.st_mtime_ns
