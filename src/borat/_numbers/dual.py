"""Exact maximisation of a concave quadratic over the simplex: the dual of BORAT's proximal problem (eq. 7).

    maximise  D(alpha) = b'alpha - 1/2 alpha'Q alpha   over  alpha >= 0, sum(alpha) = 1

On the support of a solution all derivatives ``r = b - Q alpha`` are equal, and no other derivative is larger
(Proposition 1). The paper's Algorithm 1 tries all supports. This active-set method is exact as well: it moves from
support to support, and every step increases the value. ``dual.c`` is a faster implementation of the same method.
"""

from __future__ import annotations

import ctypes
import math

import numpy as np
import numpy.typing as npt

from borat._native import library

Array = npt.NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)


def maximise(Q: Array, b: Array) -> tuple[Array, float]:
    """Return the weights and the dual value; all are NaN if an entry of the problem is not finite."""
    if library is None:
        return maximise_in_numpy(Q, b)
    n = len(b)
    results = (ctypes.c_double * (n + 1))()
    if library.borat_dual(ctypes.c_int64(n), Q.tobytes(), b.tobytes(), results):
        raise MemoryError(f"no memory for a dual of {n} pieces")
    alpha, value = np.frombuffer(memoryview(results), count=n), results[n]
    return (alpha, value) if math.isfinite(value) else (np.full(n, math.nan), math.nan)


def maximise_in_numpy(Q: Array, b: Array) -> tuple[Array, float]:
    """Solve the same problem in NumPy, for installations without the compiled library."""
    if not (np.isfinite(Q).all() and np.isfinite(b).all()):
        return np.full_like(b, np.nan), math.nan
    # Scaling by a power of two changes no digit; it avoids overflow and keeps tolerances meaningful.
    exponent = -int(np.frexp(max(np.abs(Q).max(), np.abs(b).max()))[1])
    Q, b = np.ldexp(0.5 * Q + 0.5 * Q.T, exponent), np.ldexp(b, exponent)
    alpha = _ascend(Q, b)
    return alpha, float(np.ldexp(alpha @ b - 0.5 * alpha @ Q @ alpha, -exponent))


def _ascend(Q: Array, b: Array) -> Array:
    """Ascend from the best vertex to the maximum.

    Every step is a Newton step on the face of the current support, truncated where a weight reaches zero. Once the face
    is solved, the piece with the largest derivative enters. The duality gap ``max(r) - alpha'r`` bounds the distance to
    the maximum; the ascent ends when the gap is within rounding.
    """
    n = len(b)
    size_Q, size_b = np.abs(Q), np.abs(b)
    alpha = np.zeros(n)
    alpha[np.argmax(b - 0.5 * np.diagonal(Q))] = 1.0
    best, best_gap = alpha, np.inf
    for _ in range(50 * n):
        r = b - Q @ alpha
        gap = float(r.max() - alpha @ r)
        if gap < best_gap:
            best, best_gap = alpha, gap
        noise = (n + 3) * _EPS * float((size_b + size_Q @ alpha).max())
        if gap <= noise:
            break
        support = np.flatnonzero(alpha)
        if np.ptp(r[support]) <= noise:
            entering = int(np.argmax(r))
            if entering in support:
                break
            support = np.append(support, entering)
        alpha = _step_on_face(Q, r, alpha, support)
    return best


def _step_on_face(Q: Array, r: Array, alpha: Array, support: npt.NDArray[np.intp]) -> Array:
    """Take a Newton step over the weights in ``support``, as far as they stay non-negative."""
    # Differences to the gradient of least norm lose the fewest digits.
    base = support[np.argmin(Q[support, support])]
    others = support[support != base]
    cross = Q[others, base]
    M = Q[np.ix_(others, others)] - cross[:, None] - cross[None, :] + Q[base, base]
    diagonal = np.diagonal(M)
    scale = 1.0 / np.sqrt(np.where(diagonal > 0.0, diagonal, 1.0))
    curvature, axes = np.linalg.eigh(M * scale[:, None] * scale[None, :])
    # Along a flat or, by rounding, negatively curved axis, the step is so long that a weight reaches zero first.
    curvature = np.maximum(curvature, len(support) * _EPS)
    direction = np.zeros(len(alpha))
    direction[others] = scale * (axes @ ((axes.T @ ((r[others] - r[base]) * scale)) / curvature))
    direction[base] = -direction[others].sum()
    vanishing = np.flatnonzero((direction < 0.0) & (-direction >= alpha))
    limits = alpha[vanishing] / -direction[vanishing]
    length = limits.min(initial=1.0)
    moved = np.maximum(alpha + length * direction, 0.0)
    moved[vanishing[limits <= length]] = 0.0
    result: Array = moved / moved.sum()
    return result
