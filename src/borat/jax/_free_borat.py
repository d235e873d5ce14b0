"""FreeBORAT as a gradient transformation."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from borat._checks import is_number
from borat._numbers.rolling import Rolling, metric_memory, new_rolling, roll
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


class FreeBoratState(NamedTuple):
    """State of :func:`free_borat`: two trees with the structure of the parameters, and one for each stored gradient."""

    count: Array  # type: ignore[assignment]  # the number of batches, dropped ones included
    numbers: Rolling  # the algorithm's few numbers; ``dropped`` and ``zeros`` count batches that made no step
    centre: Params  # z
    rms: Params  # the root of the mean square of the gradients
    gradients: tuple[Params, ...]  # the gradients of all pieces except the newest


def free_borat(
    bundle_size: int = 3,
    *,
    learning_rate: Any = 1.0,
    b1: Any = 0.9,
    b2: Any = 0.99,
    aim: Any = None,
    lower_bound: Any = 0.0,
    weight_decay: Any = 0.0,
    projection: Projection | None = None,
    eps: Any = 1e-8,
    axis_name: Any = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Stochastic bundle method that needs no learning rate, no schedule and no lower bound of the loss.

    This is :class:`borat.FreeBORAT` as an Optax transformation; the documentation of that class describes the
    algorithm. Pass the loss of the batch to ``update`` as ``value``, and get the result from
    :func:`free_borat_eval_params`. A batch is dropped if its loss or gradient is not finite, or if its gradient is far
    longer than those before: its updates are zero.

    Args:
        bundle_size: the number of pieces :math:`N`, the target included; 2 to 8.
        learning_rate: a factor on the step: a number, a schedule, or a tree of numbers that is a prefix of the
            parameters' tree. Leave it at 1.
        b1: :math:`\beta_1`, the weight of the average in the point where gradients are measured.
        b2: :math:`\beta_2`, the decay of the metric's running mean.
        aim: fraction in (0, 1] of the distance to the lower bound; if given, it replaces the measured gap.
        lower_bound: a value that no batch's loss falls below. It is used only if ``aim`` is given.
        weight_decay: decoupled as in AdamW: a number, or a tree of numbers that is a prefix of the parameters' tree.
        projection: a function that projects the parameters' tree onto a feasible set, such as those of
            ``optax.projections``. Start from a feasible point.
        eps: added to the metric, for numerical stability.
        axis_name: the name of the axis of ``jax.shard_map``, ``pmap`` or ``vmap`` over which the loss is averaged. The
            gradients must be averaged already. Arrays that are sharded under ``jit`` need no name.

    Returns:
        The transformation. Its ``update`` needs ``params`` and ``value``.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from borat.jax import free_borat, free_borat_eval_params
        >>> tx = free_borat()
        >>> @jax.jit
        ... def step(params, state):
        ...     loss, grads = jax.value_and_grad(lambda w: (w**2).sum())(params)
        ...     updates, state = tx.update(grads, state, params, value=loss)
        ...     return optax.apply_updates(params, updates), state
        >>> params = jnp.array([1.0, 2.0])
        >>> state = tx.init(params)
        >>> for _ in range(200):
        ...     params, state = step(params, state)
        >>> result = free_borat_eval_params(state, params)
        >>> bool((result**2).sum() < 1e-3)
        True
    """
    check_common(bundle_size, 2, learning_rate, lower_bound, projection)
    check_number("b1", b1, "a number in (0, 1)", lambda x: 0.0 < x < 1.0)
    check_number("b2", b2, "a number in [0, 1)", lambda x: 0.0 <= x < 1.0)
    check_number("weight_decay", weight_decay, "a finite number of at least 0", lambda x: 0.0 <= x < math.inf)
    check_number("eps", eps, "a positive, finite number", lambda x: 0.0 < x < math.inf)
    if aim is not None:
        check_number("aim", aim, "a number in (0, 1]", lambda x: 0.0 < x <= 1.0)

    decays = not is_number(weight_decay) or weight_decay > 0.0

    def init(params: Params) -> FreeBoratState:
        check_params("free_borat", params)
        return FreeBoratState(
            count=jnp.zeros((), jnp.int32),
            numbers=as_arrays(new_rolling(bundle_size)),
            centre=jax.tree.map(jnp.array, params),  # a copy: both may be donated
            rms=jax.tree.map(lambda p: jnp.zeros_like(p, vectors.precise_type(p)), params),
            gradients=tuple(jax.tree.map(jnp.zeros_like, params) for _ in range(bundle_size - 2)),
        )

    def update(
        grads: Params, state: FreeBoratState, params: Params | None = None, *, value: Any = None, **_: Any
    ) -> tuple[Params, FreeBoratState]:
        y, g, tree = flatten("free_borat", grads, state, FreeBoratState, bundle_size - 2, params, value)
        if not y:  # of optax.multi_transform, for a label that no parameter has
            return grads, state
        z, rms, *rows = (tree.flatten_up_to(x) for x in (state.centre, state.rms, *state.gradients))
        pieces = list(zip(*rows, g, strict=True))
        lr = by_leaf(at_step(learning_rate, state.count), params)

        # 1. to 4. The metric, the products, the target and the dual.
        beta2 = metric_memory(b2, state.numbers.batches)
        sums = [vectors.metric_products(*x, beta2, eps) for x in zip(pieces, y, z, rms, strict=True)]
        products = vectors.all_products(stack(sums), bundle_size - 1)
        loss, longest = mean_loss(value, axis_name), vectors.longest_step(y)
        beta = jnp.asarray(b1, loss.dtype)
        options = {"aim": aim, "longest": longest, "largest": longest}
        numbers, step = take(
            roll, jax_ops(bundle_size - 1), state.numbers, loss, products, beta, lower_bound, lr, **options
        )

        # 5. The step. A root is cheap: with another beta2, if only formally, XLA does not store those of the products.
        beta2 = jnp.where(step.ok, beta2, 1.0)
        roots = vectors.where(step.ok, [vectors.new_rms(*x, beta2) for x in zip(rms, g, strict=True)], rms)
        D = [vectors.metric(root, eps) for root in roots]

        def steps_of(step: Any) -> list[Array]:
            steps = [vectors.metric_step(*x) for x in zip(pieces, D, step.coefficients, strict=True)]
            if decays:
                decay = step.decay * by_leaf(weight_decay, params)
                steps = [s + d.astype(s.dtype) * x for s, d, x in zip(steps, decay, y, strict=True)]
            return steps

        steps = steps_of(step)
        centre = [x - s for x, s in zip(z, steps, strict=True)]
        if projection is not None:
            centre = tree.flatten_up_to(projection(tree.unflatten(vectors.where(True, centre, z))))
        centre = vectors.where(step.ok, centre, z)

        # 6. The point between the centre and the average.
        # The same steps, formally of other coefficients, so that XLA computes them again instead of storing them.
        again = steps_of(step._replace(coefficients=jnp.where(step.ok, step.coefficients, 0.0)))
        is_exact = [projection is None and s.dtype == x.dtype for s, x in zip(steps, z, strict=True)]
        back = [s if same else old - new for same, s, old, new in zip(is_exact, again, z, centre, strict=True)]
        average = step.pull, step.ratio, beta
        moved = [vectors.follow(*leaf, average) for leaf in zip(y, centre, back, strict=True)]
        updates = [x - old for x, old in zip(vectors.where(step.ok, moved, y), y, strict=True)]

        # The new parameters, as optax.apply_updates computes them, are not NaN. Kept gradients depend on them so that
        # XLA replaces the gradients last, in place.
        oks = [step.ok & vectors.is_settled(x + u) for x, u in zip(y, updates, strict=True)]
        kept = [vectors.keep(old, new, step.row, ok) for (*old, new), ok in zip(pieces, oks, strict=True)]
        return tree.unflatten(updates), FreeBoratState(
            count=optax.safe_increment(state.count),
            numbers=numbers,
            centre=tree.unflatten(centre),
            rms=tree.unflatten(roots),
            gradients=tuple(tree.unflatten(row) for row in zip(*kept, strict=True)),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def free_borat_eval_params(state: Any, params: Params) -> Params:
    """Return the result of :func:`free_borat`, the average of the centres: evaluate and save it.

    Args:
        state: the state of the transformation, or of one that contains it, such as ``optax.chain``.
        params: the parameters of the same step.
    """
    for own in find_states(FreeBoratState, state):
        beta = own.numbers.beta

        def average(z: Any, y: Any, beta: Array = beta) -> Any:
            if is_masked(z):
                return y
            share = jnp.where(beta > 0.0, 1.0 / beta, 1.0).astype(vectors.precise_type(z))  # 1 before the first batch
            return (z + (y - z) * share).astype(y.dtype)

        params = jax.tree.map(average, own.centre, params, is_leaf=is_masked)
    return params
