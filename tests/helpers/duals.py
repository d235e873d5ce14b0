"""Duals that are hard to solve, and optimality conditions."""

from __future__ import annotations

import numpy as np

Problem = tuple[np.ndarray, np.ndarray]


def value(Q: np.ndarray, b: np.ndarray, alpha: np.ndarray) -> float:
    return float(alpha @ b - 0.5 * alpha @ Q @ alpha)


def relative_gap(Q: np.ndarray, b: np.ndarray, alpha: np.ndarray) -> float:
    """Return the duality gap, which is zero at solutions only, relative to the largest entry."""
    r = b - Q @ alpha
    return float((r.max() - alpha @ r) / max(np.abs(Q).max(), np.abs(b).max(), np.finfo(float).tiny))


def assert_maximal(Q: np.ndarray, b: np.ndarray, alpha: np.ndarray, gap: float = 1e-12) -> None:
    assert (alpha >= 0.0).all()
    assert abs(alpha.sum() - 1.0) <= 1e-12
    assert relative_gap(Q, b, alpha) <= gap


def degenerate(rng: np.random.Generator, n: int) -> Problem:
    """Return a random problem, often degenerate in a way that occurs in bundles."""
    A = rng.standard_normal((n, rng.integers(1, n + 3)))
    first, other = rng.integers(n, size=2)
    match rng.integers(8):
        case 0:
            A[other] = A[first]
        case 1:
            A[other] = -A[first]
        case 2:
            A[other] = 0.0
        case 3:
            A = A[first] + 10.0 ** rng.uniform(-12, 0) * rng.standard_normal(A.shape)
        case 4:
            A *= 10.0 ** rng.uniform(-6, 6, (n, 1))
        case 5:
            A = rng.integers(-1, 2, A.shape).astype(float)
        case 6:
            A[:] = A[first]
    b = rng.standard_normal(n) * 10.0 ** rng.uniform(-6, 6)
    if rng.random() < 0.3:
        b = np.round(b / np.abs(b).max())
    scale = 10.0 ** rng.uniform(-14, 14) if rng.random() < 0.5 else 1.0
    return scale * A @ A.T, scale * b


def extreme(rng: np.random.Generator, n: int) -> Problem:
    """Return a degenerate problem that may also be flat, have equal offsets, or be near the limits of float64."""
    Q, b = degenerate(rng, n)
    match rng.integers(6):
        case 0:
            b[:] = b[0]
        case 1:
            b[:] = 0.0
        case 2:
            Q[:] = 0.0
        case 3:
            Q[0] = Q[:, 0] = b[0] = 0.0
    if rng.random() < 0.3:
        largest, scale = max(np.abs(Q).max(), np.abs(b).max(), 1e-300), 10.0 ** rng.uniform(-300, 300)
        Q, b = Q / largest * scale, b / largest * scale
    return Q, b
