"""BORAT (Algorithm 2 of the paper) and its special case ALI-G as gradient transformations."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from borat._checks import is_number
from borat._numbers.bundle import Bundle, add_piece, new_bundle
from borat.jax import _vectors as vectors
from borat.jax._arguments import (
    Params,
    Projection,
    at_step,
    by_leaf,
    check_common,
    check_number,
    check_params,
    find_states,
    flatten,
    is_masked,
    mean_loss,
)
from borat.jax._numbers import as_arrays, jax_ops, stack, take


class BoratState(NamedTuple):
    """State of :func:`borat`. Trees have the structure of the parameters; those that are not needed are None."""

    count: Array  # type: ignore[assignment]  # the number of batches, dropped ones included
    numbers: Bundle  # the algorithm's few numbers; ``position`` is the number of pieces in the open bundle
    centre: Params | None  # the point that the open bundle started from
    velocity: Params | None  # the velocity of Nesterov momentum
    gradients: tuple[Params, ...]  # the gradients of all pieces except the last


def borat(
    learning_rate: Any = 0.1,
    bundle_size: int = 3,
    *,
    momentum: Any = 0.9,
    lower_bound: Any = 0.0,
    projection: Projection | None = None,
    axis_name: Any = None,
) -> optax.GradientTransformationExtraArgs:
    """Bundle Optimisation for Robust and Accurate Training (Paren, Berrada, Poudel and Kumar, JMLR 2022).

    This is :class:`borat.BORAT` as an Optax transformation; the documentation of that class describes the algorithm.
    Pass the loss of the batch to ``update`` as ``value``. Every ``bundle_size - 1`` batches complete an update. In
    between, the parameters are at a trial point, and :func:`borat_eval_params` returns the centre. If the loss or a
    gradient is not finite, the batch is dropped: its updates are zero.

    Args:
        learning_rate: the maximal learning rate: a number, a schedule, or a tree of numbers that is a prefix of the
            parameters' tree. A change takes effect at the next bundle. ``None`` removes the cap (only for
            ``bundle_size=2``).
        bundle_size: the number of pieces, the bound included; 1 to 8.
        momentum: Nesterov momentum, in [0, 1).
        lower_bound: a value that no batch's loss falls below.
        projection: a function that projects the parameters' tree onto a feasible set, such as those of
            ``optax.projections``. Start from a feasible point.
        axis_name: see :func:`free_borat`.

    Returns:
        The transformation. Its ``update`` needs ``params`` and ``value``.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from borat.jax import borat
        >>> tx = borat(learning_rate=1.0)
        >>> @jax.jit
        ... def step(params, state):
        ...     loss, grads = jax.value_and_grad(lambda w: (w**2).sum())(params)
        ...     updates, state = tx.update(grads, state, params, value=loss)
        ...     return optax.apply_updates(params, updates), state
        >>> params = jnp.array([1.0, 2.0])
        >>> state = tx.init(params)
        >>> for _ in range(40):
        ...     params, state = step(params, state)
        >>> bool((params**2).sum() < 1e-3)
        True
    """
    is_capped = learning_rate is not None
    if not is_capped and bundle_size != 2:
        raise ValueError(f"learning_rate must be a number unless bundle_size is 2, got None with {bundle_size=}")
    check_common(bundle_size, 1, learning_rate if is_capped else 1.0, lower_bound, projection)
    check_number("momentum", momentum, "a number in [0, 1)", lambda x: 0.0 <= x < 1.0)
    has_momentum = not is_number(momentum) or momentum > 0.0
    pieces = max(bundle_size - 1, 1)

    def init(params: Params) -> BoratState:
        check_params("borat", params)

        def zeros() -> Params:
            return jax.tree.map(jnp.zeros_like, params)

        return BoratState(
            count=jnp.zeros((), jnp.int32),
            numbers=as_arrays(new_bundle(bundle_size, len(jax.tree.leaves(params)))),
            centre=zeros() if pieces > 1 else None,
            velocity=zeros() if has_momentum else None,
            gradients=tuple(zeros() for _ in range(pieces - 1)),
        )

    def update(
        grads: Params, state: BoratState, params: Params | None = None, *, value: Any = None, **_: Any
    ) -> tuple[Params, BoratState]:
        weights, g, tree = flatten("borat", grads, state, BoratState, pieces - 1, params, value)
        if not weights:  # of optax.multi_transform, for a label that no parameter has
            return grads, state
        rows = [tree.flatten_up_to(x) for x in state.gradients]
        gradients = list(zip(*rows, g, strict=True))
        lr = by_leaf(at_step(learning_rate, state.count) if is_capped else 1.0, params)

        # 1. The row of the Gram matrix, with a parameter group for each array.
        n = state.numbers.position
        sums = stack([vectors.gram_row(old, new) for *old, new in gradients])
        row = jnp.where(jnp.arange(pieces) < n, sums, sums[:, -1:])  # later entries are ignored

        # 2. and 3. The offset, and the dual over all pieces and the bound.
        loss, options = mean_loss(value, axis_name), {"is_capped": is_capped, "largest": vectors.longest_step(weights)}
        numbers, step = take(add_piece, jax_ops(pieces), state.numbers, loss, row, lower_bound, lr, **options)

        # 4. The trial point for the next piece or, with the last one, the new centre.
        base = weights
        if state.centre is not None:  # the first piece is measured at the centre
            base = vectors.where(n > 0, tree.flatten_up_to(state.centre), weights)
        kept = [vectors.keep(old, new, n, step.ok) for *old, new in gradients]
        steps = [vectors.combine(c, (*old, new)) for c, old, new in zip(step.coefficients, kept, g, strict=True)]
        point, velocity = [x - u for x, u in zip(base, steps, strict=True)], None
        if state.velocity is not None:
            old = tree.flatten_up_to(state.velocity)
            new = [jnp.asarray(momentum, u.dtype) * v + u for v, u in zip(old, steps, strict=True)]
            ahead = [x - jnp.asarray(momentum, v.dtype) * v for x, v in zip(point, new, strict=True)]
            point = vectors.where(step.completes, ahead, point)
            velocity = tree.unflatten(vectors.where(step.completes, new, old))
        point = vectors.where(step.ok, point, weights)
        if projection is not None:
            feasible = tree.flatten_up_to(projection(tree.unflatten(point)))
            point = vectors.where(step.completes, feasible, point)
        updates = [x - old for x, old in zip(point, weights, strict=True)]
        return tree.unflatten(updates), BoratState(
            count=optax.safe_increment(state.count),
            numbers=numbers,
            centre=None if state.centre is None else tree.unflatten(base),
            velocity=velocity,
            gradients=tuple(tree.unflatten(x) for x in zip(*kept, strict=True)),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def alig(
    learning_rate: Any = 0.1,
    *,
    momentum: Any = 0.9,
    lower_bound: Any = 0.0,
    projection: Projection | None = None,
    axis_name: Any = None,
) -> optax.GradientTransformationExtraArgs:
    """Adaptive Learning-rates for Interpolation with Gradients: :func:`borat` with a bundle of two.

    Args:
        learning_rate: the cap of the Polyak step; ``None`` removes it.
        momentum: see :func:`borat`.
        lower_bound: see :func:`borat`.
        projection: see :func:`borat`.
        axis_name: see :func:`borat`.
    """
    options: dict[str, Any] = {"lower_bound": lower_bound, "projection": projection, "axis_name": axis_name}
    return borat(learning_rate, 2, momentum=momentum, **options)


def borat_eval_params(state: Any, params: Params) -> Params:
    """Return the result of :func:`borat`: the centre within a bundle, otherwise the parameters themselves.

    Args:
        state: the state of the transformation, or of one that contains it, such as ``optax.chain``.
        params: the parameters of the same step.
    """
    for own in find_states(BoratState, state):
        is_open = own.numbers.position > 0

        def centre(w: Any, p: Any, is_open: Array = is_open) -> Any:
            return p if is_masked(w) else jnp.where(is_open, w, p)

        if own.centre is not None:
            params = jax.tree.map(centre, own.centre, params, is_leaf=is_masked)
    return params
