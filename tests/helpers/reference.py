"""Slow, literal reference implementations: the algorithms line by line, on plain vectors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from itertools import combinations

import numpy as np

Vector = np.ndarray
Batch = Callable[[Vector], tuple[float, Vector]]
"""The loss and its gradient at a point."""


def enumerate_dual(Q: np.ndarray, b: Vector) -> tuple[Vector, float]:
    """Algorithm 1, started at minus infinity, with singular systems skipped."""
    n = len(b)
    best, d_max = None, -np.inf
    for size in range(1, n + 1):
        for I in combinations(range(n), size):  # noqa: E741
            system = np.ones((size + 1, size + 1))
            system[:size, :size] = Q[np.ix_(I, I)]
            system[size, size] = 0.0
            if np.linalg.matrix_rank(system) < size + 1:
                continue
            phi = np.linalg.solve(system, np.append(b[list(I)], 1.0))[:size]
            if (phi < 0.0).any():
                continue
            psi = np.zeros(n)
            psi[list(I)] = phi
            d = psi @ b - 0.5 * psi @ Q @ psi
            if d > d_max:
                best, d_max = psi, d
    assert best is not None
    return best, d_max


def borat(
    w: Vector,
    batches: Iterator[Batch],
    updates: int,
    bundle_size: int,
    lr: float | Vector,
    momentum: float = 0.0,
    lower_bound: float = 0.0,
    project: Callable[[Vector], Vector] = lambda w: w,
) -> Iterator[tuple[Vector, Vector]]:
    """Run Algorithm 2 with momentum; yield each trial point and iterate, with the weights of the pieces.

    ``lr`` may differ between the coordinates, as it does with parameter groups.
    """
    w = project(w)
    v = np.zeros_like(w)
    pieces = max(bundle_size - 1, 1)
    for _ in range(updates):
        A, b = np.zeros((0, len(w))), np.zeros(0)
        trial = w
        for n in range(pieces):
            loss, g = next(batches)(trial)
            A = np.vstack((A, g))
            b = np.append(b, loss - g @ (trial - w))
            alpha = _weights(A, b, lr, None if bundle_size == 1 else lower_bound)
            u = -lr * (A.T @ alpha[: n + 1])
            if n < pieces - 1:
                trial = w + u
                yield trial, alpha
        v = momentum * v + u
        w = project(w + u + momentum * v)
        yield w, alpha


def _weights(A: np.ndarray, b: Vector, lr: float | Vector, lower_bound: float | None) -> Vector:
    if lower_bound is None:
        return np.ones(1)
    rows = np.vstack((A, np.zeros(A.shape[1])))
    return enumerate_dual((rows * lr) @ rows.T, np.append(b, lower_bound))[0]


def free_borat(
    y: Vector,
    batches: Iterator[Batch],
    bundle_size: int,
    lr: float | Vector = 1.0,
    betas: tuple[float, float] = (0.9, 0.99),
    aim: float | None = None,
    lower_bound: float = 0.0,
    weight_decay: float | Vector = 0.0,
    eps: float = 1e-8,
    project: Callable[[Vector], Vector] = lambda w: w,
) -> Iterator[tuple[Vector, Vector, Vector, Vector]]:
    """Run FreeBORAT's six steps one after the other; yield y, x, z and the weights of the pieces after each batch.

    Pieces update their values at the centre by its actual move. ``lr`` and ``weight_decay`` may differ
    between the coordinates, as they do with parameter groups. No batch is an outlier.
    """
    beta, beta2 = betas
    z = x = y = project(y)
    v = np.zeros_like(z)
    A, losses, linear = np.zeros((0, len(z))), np.zeros(0), np.zeros(0)
    gap_of = measured_gap(beta)
    next(gap_of)
    for k, batch in enumerate(batches, start=1):
        loss, g = batch(y)
        # 1
        v = beta2 * v + (1.0 - beta2) * g**2
        D = np.sqrt(v / (1.0 - beta2**k)) + eps
        # 2
        A = np.vstack((A, g))[-(bundle_size - 1) :]
        losses = np.append(losses, loss)[-(bundle_size - 1) :]
        linear = np.append(linear, g @ (z - y))[-(bundle_size - 1) :]
        # 3
        gamma, warmth = g @ (g / D), 1.0 - beta**k
        if aim is None:
            gap, R, usual = gap_of.send((loss, g @ (z - y), gamma, np.linalg.norm(g / D)))
            b = R * losses + linear
            T = b[-1] - 0.5 * warmth * gap
        else:
            b = losses + linear
            gap = max(b[-1] - lower_bound, 0.0)
            T = lower_bound + gap * (1.0 - aim * warmth)
        alpha = np.append(np.zeros(len(b)), 1.0)
        if gap > 0.0 and gamma > 0.0:
            eta = gap / gamma
            if aim is None:
                eta = min(eta, usual)
            # 4
            rows = np.vstack((A, np.zeros(len(z))))
            alpha = enumerate_dual(eta * (rows / D) @ rows.T, np.append(b, T))[0]
            # 5
            u = -eta * (A.T @ alpha[:-1]) / D
            tau = eta * (1.0 - alpha[-1])
            before, z = z, project(z + lr * (u - tau * weight_decay * y))
            linear = linear + A @ (z - before)
        # 6
        x = x + 2.0 / (k + 1.0) * (z - x)
        y = (1.0 - beta) * z + beta * x
        yield y, x, z, alpha


def measured_gap(beta: float) -> Generator[tuple[float, float, float], tuple[float, float, float, float], None]:
    """Receive the loss, <g, z - y>, gamma and the norm of g / D of each batch; yield the gap, R and the second cap."""
    curve = average = slopes = highest = top = best = reach = won = lost = deviation = rise = gaps = gammas = 0.0
    start, cap = 1.0, 0.0
    loss, apart, gamma, length = yield 0.0, 0.0, 0.0
    for k in itertools.count(1):
        if k == 1:
            curve = average = highest = last = loss
        else:
            most = 10.0 * deviation if deviation > 0.0 else np.inf
            clipped = curve + min(max(loss - curve, -most), most)
            deviation += (abs(clipped - curve) - deviation) / (k - 1)
            if k == 2:
                curve = average = highest = previous = clipped = min(loss, curve)
            else:
                previous = curve
                average += (clipped - average) / k
                curve += (1.0 - beta) / (1.0 - beta**k) * (clipped - curve)
            rise += 2.0 / k * (max(clipped - last, 0.0) - rise)
            last = clipped
            highest = max(highest, curve)
            slopes += 2.0 / (k - 1) * apart
            top = max(top, slopes)
            if top - slopes > best and highest > curve:
                best, reach = top - slopes, highest - curve
            reach = max(reach, (highest - curve) / 4.0)
            lost = max(lost * np.sqrt((k - 1) / k) + curve - previous, 0.0)
        faded = won * np.sqrt((k - 1) / k)
        won = max(average - curve, faded)
        R = best / max(best, reach) if best > 0.0 else 0.0
        gap = R * (9.0 * won + lost)
        if rise > 0.0 and top - slopes <= 0.5 * best:
            usual = max(0.01, cap) * gamma
            gap = min(gap, usual * (0.04 * np.sqrt(k) + (max(highest - curve, lost) / (10.0 * rise)) ** 2))
        first = min(0.01, 1.0 / length) if length > 0.0 else 0.01
        start *= 1.0 - 3.0 * first
        gap += start * first * gamma
        gaps, gammas = gaps + gap, gammas + gamma
        mean_step = gaps / gammas if gammas > 0.0 else 0.0
        cap = mean_step if average - curve > faded or cap == 0.0 else min(mean_step, cap)
        loss, apart, gamma, length = yield gap, R, cap


def project_l2(radius: float) -> Callable[[Vector], Vector]:
    def project(w: Vector) -> Vector:
        norm = np.linalg.norm(w)
        return w if norm <= radius else w * (radius / norm)

    return project
