"""The compiled library: C kernels for the CPU and the exact dual, built with the package if a C compiler exists."""

from __future__ import annotations

import ctypes
import zlib
from pathlib import Path

SOURCES = ("kernels.c", "kernels_of_real.h", "dual.c")
"""Sources of the library, in the order of hatch_build.py."""


def _load() -> ctypes.CDLL | None:
    """Return the library, or None if it is missing, built for another platform, or older than its sources."""
    folder = Path(__file__).parent
    try:
        library = ctypes.CDLL(str(folder / "_kernels.so"))
        compiled_from = ctypes.c_uint32.in_dll(library, "borat_sources").value
        sources = b"".join((folder / name).read_bytes() for name in SOURCES)
    except (OSError, ValueError):
        return None
    return library if compiled_from == zlib.crc32(sources) else None


library = _load()
