"""The dual of ``dual.c``: an active-set method that starts from the last solution, in microseconds."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from borat import kernels

Array = npt.NDArray[np.float64]

_library = kernels.library()

if _library is not None:
    _size, _open, _add = _library.borat_dual_size, _library.borat_dual_open, _library.borat_dual_add
    _load, _value = _library.borat_dual_load, _library.borat_dual_value
    _size.argtypes, _size.restype = (ctypes.c_int64,), ctypes.c_int64
    _open.argtypes, _open.restype = (ctypes.c_void_p, ctypes.c_int64), ctypes.c_void_p
    _add.argtypes, _add.restype = (ctypes.c_void_p, ctypes.c_double), None
    _load.argtypes, _load.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p), None
    _value.argtypes, _value.restype = (ctypes.c_void_p,), ctypes.c_double


class CompiledDual:
    """A growing problem, in memory that C and NumPy both see: the row of the next piece, the weights, all the rest."""

    def __init__(self, capacity: int) -> None:
        buffer = (ctypes.c_double * _size(capacity))()
        # As a pointer of ctypes it cannot be copied or pickled: a copy would write into this problem's memory.
        self._problem = ctypes.c_void_p(_open(buffer, capacity))
        memory = np.frombuffer(buffer)
        self._row, self._weights = memory[:capacity], memory[capacity : 2 * capacity]
        self._pieces = 0

    def add(self, row: Array, offset: float) -> Array:
        n = self._pieces
        if n == len(self._row):
            raise ValueError(f"a problem with room for {n} pieces is full")
        self._row[: n + 1] = row
        _add(self._problem, offset)
        self._pieces = n + 1
        return self._weights[: n + 1].copy()

    @property
    def value(self) -> float:
        value: float = _value(self._problem)
        return value

    @classmethod
    def maximise(cls, Q: Array, b: Array) -> tuple[Array, float]:
        """The weights and the value of a whole problem; the value is not finite if an entry is not."""
        dual = cls(len(b))
        _load(dual._problem, Q.tobytes(), b.tobytes())  # the address of bytes costs less than that of an array
        return dual._weights.copy(), dual.value
