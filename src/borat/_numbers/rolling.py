"""FreeBORAT's rolling bundle in numbers: steps 2 to 5 of the algorithm without its vectors.

Each batch adds a piece and removes the oldest. A piece is an affine function, stored as its gradient (a row of the
optimizer's state), its loss, and its value at the origin without the loss. Its value at the centre is computed again
for every step: weight decay, a projection or the user may have moved the centre, and the scale of the losses changes.
Shapes are fixed: rows without a gradient count as copies of the target.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from borat._numbers.ops import Number, Numbers, Ops, choose, merge_missing, polyak_step, replace
from borat._numbers.step_info import StepInfo, describe

AIM = 0.5
"""Fraction of the gap that a step aims to close."""
WON = 9.0
"""Factor from the progress so far to the gap."""
START, LENGTH = 0.01, 1.0
"""Limits of the first step: its size in the metric, and its length."""
WAY = 1.0 / 3.0
"""Largest sum of the step sizes that the start adds."""
REACH = 0.25
"""The largest slide is compared with the fall at that time, or with this fraction of the largest fall since if more."""
CALM, CLEAR = 0.04, 10.0
"""Noise limits a step to ``CALM sqrt(k) + (moved / (CLEAR rise))^2`` times the second cap, or ``START`` if larger."""
CONFIRMED = 0.5
"""Fraction of the largest slide above which fresh gradients confirm the progress, so that noise sets no limit."""
CLIP = 10.0
"""Largest change of the loss, in mean absolute deviations, that counts in its means."""
OUTLIER = 1000.0
"""A batch is dropped as an outlier if its ``<g, g / D>`` exceeds this multiple of the mean so far."""


class Rolling(NamedTuple):
    """The numbers from one batch to the next."""

    batches: Number  # the number of batches taken, ``k``
    updates: Number  # the number of updates; an outlier among the first two batches resets k
    losses: Numbers  # the losses of the stored pieces, by row
    at_origin: Numbers  # the values of these pieces at the origin, without their losses
    mean: Number  # the running mean ``m`` of the loss, with bias correction
    average: Number  # the mean ``r`` of all losses
    deviation: Number  # the mean absolute deviation of the losses from the running mean
    last: Number  # the last loss, clipped
    rise: Number  # the mean rise of the loss from one batch to the next; falls count as 0, later batches weigh more
    won: Number  # ``w``, the progress: the distance of the loss below its average, decaying like ``1 / sqrt(k)``
    lost: Number  # ``l``, the distance of the running mean above its lowest value, decaying like ``1 / sqrt(k)``
    fall: Number  # the distance of the running mean below its highest value
    slide: Number  # the same for the curve of the loss that the slopes of fresh gradients reconstruct
    steepest: Number  # the largest slide so far while the loss was below its highest value
    reach: Number  # the fall at the time of the largest slide, or a quarter of the largest fall since if that is more
    gaps: Number  # the sum of the gaps
    squares: Number  # the sum of ``<g, g / D>``, each in the metric of its batch
    cap: Number  # the second cap, the Polyak step size for both sums, which grows only with new progress
    start: Number  # what is left of the start, from 1 to 0
    beta: Number  # the ``beta`` with which ``y`` was computed; a schedule may have changed it since
    zeros: Number  # the number of batches that made no step
    left_out: Number  # 1 if the last batch was dropped as an outlier
    dropped: Number  # the number of dropped batches, outliers included
    dropped_loss: Number  # the loss of the last of them
    margin: Number  # the smallest value of loss minus lower bound so far


class RollingStep(NamedTuple):
    """The step of a batch."""

    ok: Number  # False if the batch is dropped
    completes: Number  # the same: every batch that is not dropped is an update
    row: Number  # the row for the new gradient, if any is stored
    coefficients: Numbers  # step along each piece's negative gradient in the metric, for each parameter group
    decay: Numbers  # the factor of weight decay, ``lr * tau``, for each parameter group
    pull: Number  # the weight of the old average in the new one, ``1 - 2 / (k + 1)``
    ratio: Number  # the new ``beta`` over the old one


class RollingInfo(NamedTuple):
    """Description of a step in numbers."""

    batches: Number  # the number of batches before it
    alpha: Numbers  # the weight of each piece by row, then of the newest and of the target
    values: Numbers  # their values at the centre
    Q: Numbers  # the matrix of the dual
    lr: Numbers  # the factor of each parameter group
    eta: Number  # the cap
    gap: Number  # the gap that the step aims to close
    step_norm: Number  # the length of the step


def new_rolling(bundle_size: int) -> Rolling:
    """Return the numbers before the first batch."""
    per_row = np.zeros(bundle_size - 2)
    return Rolling(0, 0, per_row, per_row, *(0.0,) * 14, 1.0, 0.0, 0, 0, 0, 0.0, math.inf)


def columns(pieces: int) -> tuple[int, int, int, int]:
    """Return the numbers of inner products of each kind.

    For pieces ``i`` and ``j``, by row and the newest last: ``<g_i, g_j / D>``; ``<g_i / D, g_j / D>``; ``<g_i, z>``;
    and for the newest ``<g, z - y>``.
    """
    return pieces**2, pieces**2, pieces, 1


def metric_memory(beta2: Number, batches: Number) -> Number:
    """Return the decay of the mean square: a ``beta2`` that grows from 0, which amounts to bias correction."""
    return beta2 * (1.0 - beta2**batches) / (1.0 - beta2 ** (batches + 1))


def roll(
    ops: Ops,
    old: Rolling,
    loss: Number,
    products: Numbers,
    beta: Number,
    lower_bound: Number,
    lr: Numbers,
    *,
    aim: float | None,
    longest: float,
    largest: float,
) -> tuple[Rolling, RollingInfo, RollingStep]:
    """Process a batch: add its piece, solve the dual, and compute the step.

    Args:
        ops: the functions of the kind of number.
        old: the numbers so far.
        loss: the loss at ``y``.
        products: the inner products of :func:`columns`, for each parameter group.
        lower_bound: a lower bound of the loss, for a fixed ``aim``.
        aim: a fixed fraction of the distance to the lower bound, or None.
        longest: the length of the longest step that the parameters can take.
        largest: the largest coefficient that the vectors can take.
    """
    rows = len(old.at_origin)
    pieces, groups = rows + 1, len(products)
    k, warmup = old.batches + 1, 1.0 - beta ** (old.batches + 1)
    step_grams = ops.split(products, columns(pieces))[1]
    gram, _, slopes, to_centre = ops.split(products.sum(0), columns(pieces))
    to_centre = to_centre.sum()

    # 2. The new piece: its value at the origin without its loss.
    at_origin = to_centre - ops.split(slopes, (rows, 1))[1].sum()

    # 3. The gap and the scale of the losses, the target and the cap.
    gamma = ops.split(gram, (pieces**2 - 1, 1))[1].sum()
    unit = ops.split(step_grams, (pieces**2 - 1, 1))[1].sum()
    measured, gap, scale = measure_gap(ops, old, loss, to_centre, gamma, unit, beta)
    scale = scale if aim is None else 1.0
    value = scale * loss + to_centre
    if aim is None:
        target = value - AIM * warmup * gap
        eta = ops.minimum(polyak_step(ops, gap, gamma), measured.cap)
    else:
        gap = value - lower_bound
        gap = ops.where(gap > 0.0, gap, 0.0 * gap)
        target = lower_bound + gap * (1.0 - aim * warmup)
        eta = polyak_step(ops, gap, gamma)

    # 4. The dual, with values measured from the new piece's.
    present = (ops.index < old.batches) | (ops.index == rows)
    losses, at_origins = ops.join(old.losses, loss), ops.join(old.at_origin, at_origin)
    values = ops.where(present, scale * losses + at_origins + slopes, target)
    b = ops.join(values, target)
    Q = ops.pad(eta * gram.reshape(pieces, pieces))
    alpha = merge_missing(ops, ops.dual(Q, b - value), present & (eta > 0.0))

    # 5. The step, unless it leaves the range of the parameters' numbers, is NaN, or the batch is an outlier.
    weights = eta * ops.split(alpha, (pieces, 1))[0]
    squared_norm = weights @ (lr**2 @ step_grams).reshape(pieces, pieces) @ weights
    norm = ops.sqrt(ops.where(squared_norm > 0.0, squared_norm, 0.0 * loss))
    coefficients = lr.reshape(groups, 1) * weights
    ok = (norm + 0.0 * (value + alpha.sum()) <= longest) & (abs(coefficients).sum() <= largest)
    is_outlier = _is_outlier(old, gamma) & ok & (aim is None)
    ok = ok & (is_outlier == False)  # noqa: E712
    row = old.batches % rows if rows else 0
    is_row = ops.split(ops.index, (rows, 1))[0] == row
    taken = replace(
        measured,
        batches=k,
        updates=old.updates + 1,
        losses=ops.where(is_row, loss, old.losses),
        at_origin=ops.where(is_row, at_origin, old.at_origin),
        beta=beta,
        zeros=ops.where(norm > 0.0, old.zeros, old.zeros + 1),
        left_out=ops.where(old.batches > 0, 0 * old.left_out, old.left_out),
        margin=ops.minimum(loss - lower_bound, old.margin),
    )
    dropped = replace(
        old,
        batches=ops.where(is_outlier & (old.batches == 1), 0 * old.batches, old.batches),  # either may be the outlier
        left_out=ops.where(is_outlier, 0 * old.left_out + 1, old.left_out),
        dropped=old.dropped + 1,
        dropped_loss=loss,
    )
    new = choose(ops, ok, taken, dropped)
    info = RollingInfo(old.batches, alpha, b, Q, lr, eta, gap, norm)
    step = RollingStep(
        ok=ok,
        completes=ok,
        row=row,
        coefficients=coefficients,
        decay=lr * weights.sum(),
        pull=old.batches / (k + 1.0),
        ratio=ops.where(old.beta > 0.0, beta / ops.where(old.beta > 0.0, old.beta, 1.0), 1.0),
    )
    return new, info, step


def measure_gap(
    ops: Ops, old: Rolling, loss: Number, to_centre: Number, gamma: Number, unit: Number, beta: Number
) -> tuple[Rolling, Number, Number]:
    """Estimate the remaining gap from the progress so far; return the new numbers, the gap, and the scale of losses.

    If the loss falls like ``f* + C k^-p``, its average so far exceeds it by ``p / (1 - p)`` times the remaining gap:
    for ``p = 1/2``, the rate of stochastic methods, by the gap itself. If the loss has risen, it can fall by as much
    again. Both are differences of losses, so no bound has to be known. The scale converts losses to the units of the
    gradient, which may be clipped. If losses scatter more than their mean moves, most of the measured progress is
    noise, which limits the gap unless fresh gradients confirm the progress. Before there is any progress, the gap is
    that of a short step. The metric makes all coordinates move alike, so the length of a step of size 1 grows with
    their number, and the more there are, the smaller is the step size. This start fades with the sum of its steps:
    shorter steps have more batches to make progress.

    ``to_centre`` is ``<g, z - y>``, ``gamma`` is ``<g, g / D>``, and ``unit`` is ``<g / D, g / D>``.
    """
    is_first, k = old.batches == 0, old.batches + 1
    before = ops.where(is_first, 1.0, old.batches)
    new, move = _smooth(ops, old, loss, beta, is_first, k, before)
    fade = (old.batches / k) ** 0.5
    won, faded = new.average - new.mean, fade * old.won
    is_new = won > faded
    won = ops.where(is_new, won, faded)
    lost, fall = _drawdown(ops, fade * old.lost, -move), _drawdown(ops, old.fall, move)
    slope = ops.where(is_first, 0.0, 2.0 / before * to_centre)
    scale, slide, steepest, reach = _confirm(ops, old, slope, fall)
    is_noisy = (new.rise > 0.0) & (slide <= CONFIRMED * steepest)
    clear = ops.maximum(fall, lost) / ops.where(is_noisy, CLEAR * new.rise, 1.0)
    usual_gap = ops.where(old.cap > START, old.cap, START) * gamma
    limit = ops.where(is_noisy, usual_gap * (CALM * k**0.5 + clear**2), math.inf)
    most = (LENGTH / START) ** 2
    first = LENGTH / ops.sqrt(ops.where(unit > most, unit, most))
    start = old.start * (1.0 - first / WAY)
    gap = ops.minimum((WON * won + lost) * scale, limit) + start * first * gamma
    gaps = ops.where(is_first, gap, old.gaps + gap)
    squares = ops.where(is_first, gamma, old.squares + gamma)
    ratio = polyak_step(ops, gaps, squares)
    new = replace(
        new,
        won=won,
        lost=lost,
        fall=fall,
        slide=slide,
        steepest=steepest,
        reach=reach,
        gaps=gaps,
        squares=squares,
        cap=ops.where(is_new | (old.cap == 0.0), ratio, ops.minimum(ratio, old.cap)),
        start=start,
    )
    return new, gap, scale


def _smooth(
    ops: Ops, old: Rolling, loss: Number, beta: Number, is_first: Number, k: Number, before: Number
) -> tuple[Rolling, Number]:
    """Return the numbers with the means of the losses, this one included, and the move of the running mean.

    The loss is clipped: its distance from the running mean is limited. Either of the first two losses may be an
    outlier, so the lower one counts for both.
    """
    is_early, change = old.batches < 2, loss - old.mean
    most = ops.where(old.deviation > 0.0, CLIP * old.deviation, math.inf)  # equal losses have no scale
    change = ops.minimum(ops.maximum(change, -most), most)
    lower = ops.where(is_first | (loss < old.mean), loss, old.mean)
    clipped = ops.where(is_early, lower, old.mean + change)
    move = ops.where(is_early, 0.0, (1.0 - beta) / (1.0 - beta**k)) * change
    new = replace(
        old,
        mean=ops.where(is_early, lower, old.mean + move),
        average=ops.where(is_early, lower, old.average + (clipped - old.average) / k),
        deviation=ops.where(is_first, 0.0, old.deviation + (abs(change) - old.deviation) / before),
        last=clipped,
        rise=old.rise + 2.0 / k * (ops.where(is_first | (clipped < old.last), 0.0, clipped - old.last) - old.rise),
    )
    return new, move


def _confirm(ops: Ops, old: Rolling, slope: Number, fall: Number) -> tuple[Number, Number, Number, Number]:
    """Return the share of the fall that slopes confirm, from 0 to 1, and the new slide, steepest slide and reach.

    The average moves by about ``2 / (k - 1) (z - x)``, and ``slope`` is that of a fresh gradient along its path. Unless
    gradients were clipped, the sum of the slopes follows the loss, and the slide is its fall.
    """
    slide = _drawdown(ops, old.slide, slope)
    is_steepest = (slide > old.steepest) & (fall > 0.0)
    steepest = ops.where(is_steepest, slide, old.steepest)
    reach = ops.where(is_steepest, fall, ops.maximum(old.reach, REACH * fall))
    share = steepest / ops.where(steepest > 0.0, ops.maximum(reach, steepest), 1.0)
    return share, slide, steepest, reach


def _drawdown(ops: Ops, old: Number, move: Number) -> Number:
    """Return the distance of a curve below its highest value after a move, given the distance before it."""
    new = old - move
    return new * (new > 0.0)


def _is_outlier(old: Rolling, gamma: Number) -> Number:
    """Return True if the batch is an outlier: its gradient is far longer than those before.

    Either of the first two batches may be the outlier. Two batches in a row are never dropped.
    """
    is_long = (old.batches > 0) & (gamma * old.batches > OUTLIER * old.squares)
    first_was_long = (old.batches == 1) & (gamma * OUTLIER**2 < old.squares) & (gamma > 0.0)  # and so is its metric
    return (is_long | first_was_long) & (old.left_out == 0) & (old.squares > 0.0)


def describe_rolling(info: RollingInfo) -> StepInfo:
    """Return the description of a step, its pieces from the oldest to the newest."""
    rows, k = len(info.alpha) - 2, int(info.batches)
    order = [*(i % rows for i in range(k - min(k, rows), k)), rows, rows + 1]
    alpha = info.alpha
    return describe(
        alpha[order],
        info.values[order],
        info.lr,
        cap=float(info.eta),
        dual_value=float(alpha @ info.values - 0.5 * alpha @ info.Q @ alpha),
        step_norm=float(info.step_norm),
        gap=float(info.gap),
    )
