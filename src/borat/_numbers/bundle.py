"""BORAT's bundle in numbers: Algorithm 2 without its vectors.

Notation of the paper: piece ``n`` has the gradient ``g_n`` and the offset ``b_n``; ``Q[n, k] = sum over groups of
lr * <g_n, g_k>``; ``alpha`` are the weights of the pieces, the bound's last. Shapes are fixed: pieces that are still
missing are copies of the bound, and their weights are a part of its weight.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from borat._numbers.ops import Number, Numbers, Ops, choose, polyak_step, replace
from borat._numbers.step_info import StepInfo, describe


class Bundle(NamedTuple):
    """The numbers of an open bundle, for P linear pieces and G parameter groups."""

    gram: Numbers  # ``<g_n, g_k>`` for each parameter group, of shape ``(G, P, P)``
    offsets: Numbers  # ``b_n``, measured from the bound
    alpha: Numbers  # the weights, the bound's last if there is one
    lr: Numbers  # the learning rates at the first piece
    lower_bound: Number  # the bound at the first piece
    position: Number  # the number of pieces so far
    updates: Number  # the number of completed updates
    zeros: Number  # the number of those that made no step
    dropped: Number  # the number of dropped batches
    dropped_loss: Number  # the loss of the last of them
    margin: Number  # the smallest value of loss minus lower bound so far


class BundleStep(NamedTuple):
    """The move of the vectors for a batch."""

    ok: Number  # False if the batch is dropped
    row: Number  # the row for the new gradient, if it is stored
    coefficients: Numbers  # step from the centre along each piece's negative gradient, for each parameter group
    completes: Number  # True if the step completes an update; False if it leads to a trial point


def new_bundle(bundle_size: int, groups: int) -> Bundle:
    """Return the bundle before the first batch."""
    pieces = max(bundle_size - 1, 1)
    gram, offsets = np.zeros((groups, pieces, pieces)), np.zeros(pieces)
    return Bundle(gram, offsets, np.zeros(bundle_size), np.zeros(groups), 0.0, 0, 0, 0, 0, 0.0, math.inf)


def add_group(bundle: Bundle) -> Bundle:
    """Return the bundle with one more parameter group, on which the pieces so far do not depend."""
    gram = np.concatenate((bundle.gram, np.zeros((1, *bundle.gram.shape[1:]))))
    return bundle._replace(gram=gram, lr=np.append(bundle.lr, 0.0))


def add_piece(
    ops: Ops,
    old: Bundle,
    loss: Number,
    products: Numbers,
    lower_bound: Number,
    lr: Numbers,
    *,
    is_capped: bool,
    largest: float,
) -> tuple[Bundle, Bundle, BundleStep]:
    """Add the piece of a batch and solve the dual again.

    Args:
        ops: the functions of the kind of number.
        old: the bundle so far.
        loss: the loss at the trial point.
        products: ``<g_n, g_k>`` for each parameter group and ``k <= n``; later entries are ignored.
        lower_bound: the lower bound of the loss.
        lr: the learning rates of the parameter groups.
        is_capped: True if the learning rate caps the step; otherwise the step is the Polyak step.
        largest: the largest coefficient that the vectors can take.

    Returns:
        The new bundle, the bundle as it was when the dual was solved, and the step.
    """
    (groups, pieces), size = products.shape, len(old.alpha)
    before, is_new, present = ops.index < old.position, ops.index == old.position, ops.index <= old.position
    is_open = old.position > 0
    lr, bound = ops.where(is_open, old.lr, lr), ops.where(is_open, old.lower_bound, lower_bound)
    margin = loss - bound
    if not is_capped:  # bundles of two only: there is one linear piece
        lr = 0.0 * lr + polyak_step(ops, ops.where(margin > 0.0, margin, 0.0), products.sum())

    # 1. The new row of the Gram matrix, and its column.
    row = ops.where(present, products, 0.0)
    gram = ops.where(is_open, old.gram, 0.0)
    gram = ops.where(is_new.reshape(pieces, 1), row.reshape(groups, 1, pieces), gram)
    gram = ops.where(is_new, row.reshape(groups, pieces, 1), gram)

    # 2. The trial point is w - sum of alpha_k lr g_k, hence <g_n, trial - w> = -sum of alpha_k Q[n, k].
    trial = ops.split(old.alpha, (pieces, size - pieces))[0] * before
    offset = margin + trial @ (lr @ row)
    offsets = ops.where(is_new, offset, ops.where(is_open, old.offsets, 0.0))

    # 3. The dual over all pieces and the bound. A bundle of one has no bound.
    if size > 1:
        Q = (lr @ gram.reshape(groups, pieces * pieces)).reshape(pieces, pieces)
        alpha = ops.dual(ops.pad(Q), ops.join(offsets, 0.0 * offset))
    else:
        alpha = 0.0 * old.alpha + 1.0
    coefficients = lr.reshape(groups, 1) * (ops.split(alpha, (pieces, size - pieces))[0] * present)

    # 4. With the last piece, the update; otherwise the trial point for the next one.
    size_of_step = abs(coefficients).sum()
    ok = (size_of_step <= largest) & (abs(offset) < math.inf)
    completes = ok & (old.position == pieces - 1)
    solved = Bundle(
        gram=gram,
        offsets=offsets,
        alpha=alpha,
        lr=lr,
        lower_bound=bound,
        position=old.position + 1,
        updates=ops.where(completes, old.updates + 1, old.updates),
        zeros=ops.where(completes & (size_of_step == 0.0), old.zeros + 1, old.zeros),
        dropped=old.dropped,
        dropped_loss=old.dropped_loss,
        margin=ops.where(margin < old.margin, margin, old.margin),
    )
    taken = replace(solved, position=ops.where(completes, 0 * old.position, solved.position))
    new = choose(ops, ok, taken, replace(old, dropped=old.dropped + 1, dropped_loss=loss))
    return new, solved, BundleStep(ok, solved.position - 1, coefficients, completes)


def coefficients_of(bundle: Bundle) -> Numbers:
    """Return the step of the last solution along each piece's negative gradient, for each parameter group."""
    pieces = len(bundle.offsets)
    return bundle.lr[:, None] * (bundle.alpha[:pieces] * (np.arange(pieces) < bundle.position))


def describe_bundle(bundle: Bundle, *, is_capped: bool) -> StepInfo:
    """Return the description of a completed update."""
    n, bound, lr = int(bundle.position), float(bundle.lower_bound), bundle.lr
    alpha, offsets, gram = bundle.alpha[:n], bundle.offsets[:n], bundle.gram[:, :n, :n]
    constant = [bundle.alpha[n:].sum()] if len(bundle.alpha) > 1 else []
    squared_norms = alpha @ gram @ alpha
    info = describe(
        np.append(alpha, constant),
        np.append(offsets, 0.0 * np.array(constant)) + bound,
        lr,
        cap=1.0,
        dual_value=float(alpha @ offsets - 0.5 * lr @ squared_norms) + bound,
        step_norm=math.sqrt(max(float(lr**2 @ squared_norms), 0.0)),
        gap=float(offsets[-1]),
        has_constant=bool(constant),
    )
    return info if is_capped or info.kind != "SGD" else dataclasses.replace(info, kind="ALIG")
