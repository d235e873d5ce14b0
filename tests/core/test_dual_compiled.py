"""What is to be said of the dual in C alone; test_dual.py holds for it as well."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from borat import kernels
from borat.dual_compiled import CompiledDual
from borat.dual_numpy import NumpyDual
from duals import extreme

pytestmark = pytest.mark.skipif(not kernels.are_there(), reason="there was no C compiler for the dual")


@pytest.mark.parametrize("n", [2, 3, 5, 10, 32])
def test_equals_numpy(n):
    """On random bundles: weights differ in the last bits, and with two pieces not at all."""
    rng = np.random.default_rng(n)
    for _ in range(100):
        gradients = rng.standard_normal((n, 64)) / 8
        gradients[0] = 0.0
        Q, b = gradients @ gradients.T, np.concatenate(([0.0], rng.uniform(0.2, 0.6, n - 1)))
        compiled, reference = CompiledDual(n), NumpyDual(n)
        for k in range(n):
            alpha, expected = compiled.add(Q[k, : k + 1], b[k]), reference.add(Q[k, : k + 1], b[k])
            np.testing.assert_allclose(alpha, expected, rtol=0.0, atol=0.0 if n == 2 else 4e-15)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.7e308])
def test_no_nan_comes_out(bad):
    """Whatever goes in. The optimizer drops a batch that is not finite before it gets here."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        n = int(rng.integers(1, 9))
        Q, b = extreme(rng, n)
        row, column = rng.integers(n, size=2)
        Q[row, column] = Q[column, row] = bad
        if rng.random() < 0.5:
            b[row] = bad
        dual = CompiledDual(n)
        for k in range(n):
            alpha = dual.add(Q[k, : k + 1], b[k])
            assert (alpha >= 0.0).all()
            assert abs(alpha.sum() - 1.0) <= 1e-12


def test_is_not_copied():
    """A copy would write into the memory of the original."""
    with pytest.raises(ValueError, match="pointers cannot be pickled"):
        copy.deepcopy(CompiledDual(2))
