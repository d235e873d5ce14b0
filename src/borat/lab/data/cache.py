"""Decoded data sets on disk, so that images are decoded once and not at the start of every run."""

from __future__ import annotations

import hashlib
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from borat.lab.files import write_atomically

VERSION = 1
"""Part of every key: to be raised when the same files are decoded to something else."""

Tensors = dict[str, Tensor]


def cached(folder: Path, name: str, identity: Any, make: Callable[[], Tensors]) -> Tensors:
    """Return the tensors of ``make``, from ``folder`` if they are cached there for the same ``identity``.

    ``identity`` holds the path, size and time of change of the source files: a changed file is read again. Without
    one nothing is kept. A damaged file of the cache is made again, and a folder that cannot be written is no error.
    """
    if not identity:
        return make()
    key = hashlib.sha256(repr((VERSION, identity)).encode()).hexdigest()[:16]
    path = folder / f"{name}-{key}.pt"
    tensors = _read(path)
    if tensors is None:
        tensors = make()
        try:
            _write(path, tensors)
        except OSError as error:
            warnings.warn(f"the decoded {name} cannot be kept in {folder}: {error}", stacklevel=2)
    return tensors


def _read(path: Path) -> Tensors | None:
    if not path.is_file():
        return None
    try:
        tensors: Tensors = torch.load(path, mmap=True, weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError):
        return None
    return tensors


def _write(path: Path, tensors: Tensors) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda temporary: torch.save(tensors, temporary))
