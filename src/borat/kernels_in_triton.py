"""The kernels of a step on a GPU, in Triton: each is one launch, and one pass over the parameters.

A program takes every ``tl.num_programs``-th block of the vectors. ``rows`` are the gradients of the pieces, one below
the other, the newest last; sums are added up in float64. ``REAL`` is what one computes in: float32, or float64 for
parameters of that. Numbers that come from the device are read from ``numbers``, in float64, and in the order in which
the names stand in :mod:`borat.kernels_on_device`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def bundle_products(
    rows,
    weights,
    centre,
    is_open,
    sums,
    n,
    HAS_CENTRE: tl.constexpr,
    PIECES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    REAL: tl.constexpr,
):
    """Of all gradients with the newest; and where no bundle is open, the weights become the centre."""
    row_size = tl.zeros((), tl.int64) + n  # offsets of rows may need more than 32 bits
    is_closed = tl.load(is_open).to(tl.int32) == 0
    piece = tl.arange(0, ROWS)[:, None].to(tl.int64)
    total = tl.zeros((ROWS,), tl.float64)
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < n
        G = tl.load(rows + piece * row_size + at[None, :], mask=(piece < PIECES) & inside[None, :], other=0.0).to(REAL)
        newest = tl.load(rows + (PIECES - 1) * row_size + at, mask=inside, other=0.0).to(REAL)
        total += tl.sum(G * newest[None, :], axis=1).to(tl.float64)
        if HAS_CENTRE:  # noqa: SIM102 (one is known to the compiler, the other is not)
            if is_closed:
                tl.store(centre + at, tl.load(weights + at, mask=inside), mask=inside)
    piece = tl.arange(0, ROWS)
    tl.store(sums + tl.program_id(0) * PIECES + piece, total, mask=piece < PIECES)


@triton.jit
def bundle_move(
    rows,
    weights,
    centre,
    velocity,
    numbers,
    n,
    HAS_CENTRE: tl.constexpr,
    HAS_VELOCITY: tl.constexpr,
    PIECES: tl.constexpr,
    BLOCK: tl.constexpr,
    REAL: tl.constexpr,
):
    """The newest gradient to its row, and the weights to the trial point or, with momentum, the new centre."""
    row_size = tl.zeros((), tl.int64) + n  # offsets of rows may need more than 32 bits
    row = tl.load(numbers + PIECES)
    ok = tl.load(numbers + PIECES + 1) != 0.0
    completes = tl.load(numbers + PIECES + 2) != 0.0
    momentum = tl.load(numbers + PIECES + 3).to(REAL)
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < n
        newest = tl.load(rows + (PIECES - 1) * row_size + at, mask=inside, other=0.0)
        newest = tl.where(ok, newest, tl.zeros_like(newest))
        u = tl.zeros((BLOCK,), REAL)
        for c in tl.static_range(PIECES):
            g = tl.load(rows + c * row_size + at, mask=inside, other=0.0)
            u += tl.load(numbers + c).to(REAL) * tl.where(c == row, newest, g).to(REAL)
        base = tl.load((centre if HAS_CENTRE else weights) + at, mask=inside, other=0.0).to(REAL)
        point = base - u
        if HAS_VELOCITY:
            v = tl.load(velocity + at, mask=inside, other=0.0)
            v = tl.where(completes, (momentum * v.to(REAL) + u).to(v.dtype), v)
            tl.store(velocity + at, v, mask=inside)
            point = tl.where(completes, point - momentum * v.to(REAL), point)
        tl.store(weights + at, point.to(weights.dtype.element_ty), mask=inside)
        tl.store(rows + row.to(tl.int64) * row_size + at, newest, mask=inside)


@triton.jit
def _metric(numbers, rms, newest, REAL: tl.constexpr):
    """The new ``s = sqrt(beta2 rms^2 + (1 - beta2) g^2)``, also where squares leave the range of numbers, and ``D``."""
    beta2 = tl.load(numbers)
    a = tl.abs(rms) * tl.sqrt(beta2).to(REAL)
    b = tl.abs(newest) * tl.sqrt(1.0 - beta2).to(REAL)
    longest = tl.maximum(a, b)
    unit = tl.where(longest > 0.0, longest, 1.0)
    a, b = a / unit, b / unit
    root = longest * tl.sqrt(a * a + b * b)
    return root, tl.load(numbers + 2).to(REAL) + tl.load(numbers + 1).to(REAL) * root


@triton.jit
def rolling_products(
    rows,
    weights,
    centre,
    rms,
    numbers,
    sums,
    n,
    PIECES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    REAL: tl.constexpr,
):
    """Of all gradients: ``<g, g/D>``, ``<g, z>``, for the newest ``<g, z - y>``, and ``<g/D, g/D>``."""
    row_size = tl.zeros((), tl.int64) + n  # offsets of rows may need more than 32 bits
    piece, column = tl.arange(0, ROWS)[:, None].to(tl.int64), tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float64)
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < n
        G = tl.load(rows + piece * row_size + at[None, :], mask=(piece < PIECES) & inside[None, :], other=0.0).to(REAL)
        newest = tl.load(rows + (PIECES - 1) * row_size + at, mask=inside, other=0.0).to(REAL)
        old = tl.load(rms + at, mask=inside, other=0.0).to(REAL)
        _, D = _metric(numbers, old, newest, REAL)
        scaled = G / D[None, :]
        for c in tl.static_range(PIECES):
            g = tl.load(rows + c * row_size + at, mask=inside, other=0.0).to(REAL)
            total += tl.where(column == c, tl.sum(scaled * g[None, :], axis=1).to(tl.float64)[:, None], 0.0)
            squares = tl.sum(scaled * (g / D)[None, :], axis=1).to(tl.float64)
            total += tl.where(column == PIECES + c, squares[:, None], 0.0)
        z = tl.load(centre + at, mask=inside, other=0.0).to(REAL)
        apart = z - tl.load(weights + at, mask=inside, other=0.0).to(REAL)
        total += tl.where(column == 2 * PIECES, tl.sum(G * z[None, :], axis=1).to(tl.float64)[:, None], 0.0)
        total += tl.where(column == 2 * PIECES + 1, tl.sum(G * apart[None, :], axis=1).to(tl.float64)[:, None], 0.0)
    # In the order of the docstring; each kind as a matrix, a vector, a number.
    place = tl.where(column < PIECES, piece * PIECES + column, PIECES * PIECES + piece)
    place = tl.where(column == 2 * PIECES + 1, PIECES * PIECES + PIECES, place)
    is_square = (column >= PIECES) & (column < 2 * PIECES)
    place = tl.where(is_square, PIECES * PIECES + PIECES + 1 + piece * PIECES + column - PIECES, place)
    is_used = (piece < PIECES) & (column < 2 * PIECES + 2) & ((column != 2 * PIECES + 1) | (piece == PIECES - 1))
    size = 2 * PIECES * PIECES + PIECES + 1
    tl.store(sums + tl.program_id(0) * size + place, total, mask=is_used)


@triton.jit
def rolling_move(
    rows,
    weights,
    centre,
    rms,
    numbers,
    n,
    PIECES: tl.constexpr,
    BLOCK: tl.constexpr,
    REAL: tl.constexpr,
):
    """The step of the centre, its share in the weights, the metric, and the newest gradient to its row."""
    row_size = tl.zeros((), tl.int64) + n  # offsets of rows may need more than 32 bits
    steps = numbers + 3
    decay = tl.load(steps + PIECES).to(REAL)
    ok = tl.load(steps + PIECES + 1) != 0.0
    with_centre = tl.load(steps + PIECES + 2).to(REAL)
    to_centre = tl.load(steps + PIECES + 3).to(REAL)
    row = tl.load(steps + PIECES + 4).to(tl.int64)
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < n
        newest = tl.load(rows + (PIECES - 1) * row_size + at, mask=inside, other=0.0)
        old = tl.load(rms + at, mask=inside, other=0.0)
        root, D = _metric(numbers, old.to(REAL), newest.to(REAL), REAL)
        u = tl.zeros((BLOCK,), REAL)
        for c in tl.static_range(PIECES):
            u += tl.load(steps + c).to(REAL) * (tl.load(rows + c * row_size + at, mask=inside, other=0.0).to(REAL) / D)
        y = tl.load(weights + at, mask=inside, other=0.0).to(REAL)
        z = tl.load(centre + at, mask=inside, other=0.0).to(REAL)
        u = tl.where(ok, u + decay * y, 0.0)
        tl.store(centre + at, (z - u).to(centre.dtype.element_ty), mask=inside)
        y += to_centre * (y - z) - with_centre * u
        tl.store(weights + at, y.to(weights.dtype.element_ty), mask=inside)
        tl.store(rms + at, tl.where(ok, root.to(old.dtype), old), mask=inside)
        tl.debug_barrier()  # other threads than those that write the row may have read it, and must have
        tl.store(rows + row * row_size + at, tl.where(ok, newest, tl.zeros_like(newest)), mask=inside)


@triton.jit
def dual(problems, weights, rounding, N: tl.constexpr, ROWS: tl.constexpr, SUPPORTS: tl.constexpr):
    """The weights that maximise ``b'alpha - alpha'Q alpha / 2``: :mod:`borat.dual_on_device` in one launch.

    A program takes one problem, and all supports of it at once: the bits of ``s`` are the members of a support. In the
    names of what depends on it, ``s`` comes first; ``i``, ``j`` and ``k`` are pieces.
    """
    i, s = tl.arange(0, ROWS), tl.arange(0, SUPPORTS)
    j = i
    first = problems + tl.program_id(0).to(tl.int64) * (N + 1) * N
    b = tl.load(first + i, mask=i < N, other=0.0)
    inside = (i[:, None] < N) & (j[None, :] < N)
    Q = tl.load(first + (i[:, None] + 1) * N + j[None, :], mask=inside, other=0.0)
    not_finite = tl.sum(b * 0.0) + tl.sum(tl.sum(Q * 0.0, axis=1))
    # Numbers of the size of one stay in the range of float64; a power of two changes no digit of them.
    largest = tl.maximum(tl.max(tl.abs(b)), tl.max(tl.max(tl.abs(Q), axis=1)))
    largest = tl.maximum(largest, 1e-300)
    mantissa = (largest.to(tl.int64, bitcast=True) & 0xFFFFFFFFFFFFF) | (1022 << 52)
    scale = mantissa.to(tl.float64, bitcast=True) / largest
    b, Q = b * scale, Q * scale

    is_member = ((s[:, None] >> i[None, :]) & 1) != 0
    is_member = is_member & (i[None, :] < N)
    member = tl.where(is_member, 1.0, 0.0).to(tl.float64)
    is_diagonal = i[:, None] == j[None, :]
    lengths = tl.sum(tl.where(is_diagonal, Q, 0.0), axis=1)
    shortest = tl.argmin(tl.where(is_member, lengths[None, :], float("inf")), axis=1)
    origin = tl.where(i[None, :] == shortest[:, None], 1.0, 0.0).to(tl.float64)
    # P Q P', whose rows and columns are differences to those of the origin.
    to_origin = tl.sum(origin[:, :, None] * Q[None, :, :], axis=1)
    PQ = member[:, :, None] * (Q[None, :, :] - to_origin[:, None, :])
    M = member[:, None, :] * (PQ - tl.sum(PQ * origin[:, None, :], axis=2)[:, :, None])
    # Its inverse, by the sweep operator.
    diagonal = tl.sum(tl.where(is_diagonal[None, :, :], M, 0.0), axis=2)
    unit = tl.where(diagonal > 0.0, 1.0 / tl.sqrt(tl.where(diagonal > 0.0, diagonal, 1.0)), 1.0)
    units = unit[:, :, None] * unit[:, None, :]
    swept = tl.where(is_diagonal[None, :, :], 1.0, M * units)
    for k in tl.static_range(N):
        column = tl.sum(tl.where(j[None, None, :] == k, swept, 0.0), axis=2)
        pivot = tl.sum(tl.where(i[None, :] == k, column, 0.0), axis=1)
        changed = tl.where(i[None, :] == k, column - 1.0, column)
        swept -= changed[:, :, None] * (changed / pivot[:, None])[:, None, :]
    inverse = (tl.where(is_diagonal[None, :, :], 2.0, 0.0) - swept) * units
    # The solution of each support, from its origin; the second step mends what the inverse costs.
    alpha = origin
    for _ in tl.static_range(2):
        r = b[None, :] - tl.sum(alpha[:, :, None] * Q[None, :, :], axis=1)
        slope = member * (r - tl.sum(r * origin, axis=1)[:, None])
        change = member * tl.sum(slope[:, :, None] * inverse, axis=1)
        alpha += change - origin * tl.sum(change, axis=1)[:, None]
    alpha = tl.where(alpha < 0.0, 0.0, alpha)
    alpha = alpha / tl.sum(alpha, axis=1)[:, None]
    # The one with the smallest gap; of those whose gaps drown in rounding, that with the fewest pieces.
    r = b[None, :] - tl.sum(alpha[:, :, None] * Q[None, :, :], axis=1)
    gap = tl.max(tl.where(i[None, :] < N, r, float("-inf")), axis=1) - tl.sum(alpha * r, axis=1)
    gap = tl.where((gap == gap) & (s > 0), gap, float("inf"))
    sizes = tl.abs(b)[None, :] + tl.sum(alpha[:, :, None] * tl.abs(Q)[None, :, :], axis=1)
    noise = tl.load(rounding) * tl.max(sizes, axis=1)
    least = tl.min(tl.where(noise > gap, noise, gap))
    gap = tl.where(gap > least, gap, least)
    pieces = tl.sum(tl.where(is_member, 1, 0), axis=1)
    is_best = (gap == tl.min(gap)) & (s > 0)
    order = tl.where(is_best, pieces * SUPPORTS + s, SUPPORTS * SUPPORTS)
    best = tl.sum(tl.where(order[:, None] == tl.min(order), alpha, 0.0), axis=0)
    tl.store(weights + tl.program_id(0).to(tl.int64) * N + i, best + not_finite, mask=i < N)
