"""The contract of an Optax transformation, as Optax tests its own contributions, and the errors."""

from __future__ import annotations

import inspect
import math
import operator
import pickle
from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs the jax extra")
optax = pytest.importorskip("optax", reason="needs the jax extra")

import jax.numpy as jnp  # noqa: E402
from jax.sharding import AxisType, NamedSharding, PartitionSpec  # noqa: E402

from borat.jax import BoratState, alig, borat, borat_eval_params, free_borat, free_borat_eval_params  # noqa: E402
from borat.jax import _vectors as vectors  # noqa: E402

METHODS = {
    "free_borat": free_borat,
    "borat": partial(borat, learning_rate=0.5),
    "alig": partial(alig, learning_rate=0.5),
}
over_methods = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)

PARAMS = {"w": jnp.array([[-1.0, 10.0], [1.0, 0.5]]), "b": jnp.array([3.0, -2.0, 0.0])}
TARGET = {"w": jnp.array([[1.0, -1.0], [1.0, 0.0]]), "b": jnp.array([0.5, 2.0, 1.0])}


def parabola(params):
    return sum(
        jnp.sum(jnp.square(x - y)) for x, y in zip(jax.tree.leaves(params), jax.tree.leaves(TARGET), strict=True)
    )


def rosenbrock(params):
    return (1.0 - params[0]) ** 2 + 100.0 * (params[1] - params[0] ** 2) ** 2


def step_of(tx, loss_of=parabola):
    """Return a training step, as a user writes it."""

    def step(params, state, *batch):
        loss, grads = jax.value_and_grad(loss_of)(params, *batch)
        updates, state = tx.update(grads, state, params, value=loss)
        return optax.apply_updates(params, updates), state

    return step


@partial(jax.jit, static_argnums=(0, 2, 3))
def run(tx, params, steps, loss_of=parabola):
    """Take steps; return the parameters, the result and the state."""
    step = step_of(tx, loss_of)
    params, state = jax.lax.fori_loop(0, steps, lambda _, carry: step(*carry), (params, tx.init(params)))
    return params, result_of(tx, state, params), state


def result_of(tx, state, params):
    try:
        return free_borat_eval_params(state, params)
    except ValueError:
        return borat_eval_params(state, params)


def assert_equal(first, second):
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def assert_close(first, second, **tolerance):
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(np.asarray(x, float), np.asarray(y, float), **tolerance)


# Optax's own tests of contributions


@over_methods
def test_minima_are_found(make):
    _, result, state = run(make(), PARAMS, 3000)
    assert float(parabola(result)) < 1e-4 * float(parabola(PARAMS))
    assert int(state.numbers.dropped) == 0


@pytest.mark.parametrize("make", [free_borat, partial(borat, 0.1, momentum=0.0)], ids=["free_borat", "borat"])
def test_the_minimum_of_a_curved_valley_is_found(make):
    _, result, _ = run(make(), jnp.zeros(2), 20_000, rosenbrock)
    assert float(rosenbrock(result)) < 1e-3


@over_methods
def test_unknown_arguments_are_ignored_and_nothing_is_compiled_twice(make):
    tx, traced = make(), []

    @jax.jit
    def step(params, state):
        traced.append(1)
        loss, grads = jax.value_and_grad(parabola)(params)
        updates, state = tx.update(grads, state, params, value=loss, something_else=1)
        return optax.apply_updates(params, updates), state

    params, state = PARAMS, tx.init(PARAMS)
    for _ in range(3):
        params, state = step(params, state)
    assert len(traced) == 1
    assert int(state.count) == 3


@over_methods
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_shapes_and_dtypes_stay(make, dtype):
    """Updates and states have those of the parameters; numbers are float32, or float64 with x64, for any loss."""
    with jax.enable_x64(dtype == "float64"):
        tx, params = make(), jax.tree.map(lambda p: jnp.asarray(p, dtype), PARAMS)
        state = tx.init(params)
        value = jnp.asarray(1.0, "float16" if dtype != "float16" else "bfloat16")
        updates, after = jax.eval_shape(lambda g, s, p: tx.update(g, s, p, value=value), params, state, params)
        for new, old in ((updates, params), (after, jax.eval_shape(lambda s: s, state))):
            shapes = [
                [(x.shape, x.dtype, getattr(x, "weak_type", False)) for x in jax.tree.leaves(y)] for y in (new, old)
            ]
            assert shapes[0] == shapes[1]
        numbers = {x.dtype for x in state.numbers if jnp.issubdtype(x.dtype, jnp.floating)}
        assert numbers == {jnp.dtype("float64" if dtype == "float64" else "float32")}


@over_methods
def test_bfloat16_is_trained(make):
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), PARAMS)
    _, result, state = run(make(), params, 300)
    assert_close(result, TARGET, atol=0.1)
    assert {x.dtype for x in jax.tree.leaves(result)} == {jnp.dtype(jnp.bfloat16)}
    assert math.isfinite(float(state.numbers.margin))


@over_methods
def test_states_map_like_parameters(make):
    tx = make()
    state = tx.init(PARAMS)
    assert_equal(optax.tree.map_params(tx, lambda v: v, state), state)
    names = {"w": "weights", "b": "bias"}
    named = optax.tree.map_params(tx, lambda _, name: name, state, names, transform_non_params=lambda _: None)
    assert all(x == names for x in named.gradients)
    assert sum(x in ("weights", "bias") for x in jax.tree.leaves(named)) == sum(
        2 for x in jax.tree.leaves(state) if x.shape == PARAMS["w"].shape
    )


@pytest.mark.parametrize("name", METHODS)
def test_hyperparameters_are_injected(name):
    factory = {"free_borat": free_borat, "borat": borat, "alig": alig}[name]
    static = [x for x in ("bundle_size",) if x in inspect.signature(factory).parameters]
    tx, injected = factory(), optax.inject_hyperparams(factory, static_args=static)()
    params, grads = PARAMS, jax.grad(parabola)(PARAMS)
    updates, state = jax.jit(partial(tx.update, value=1.0))(grads, tx.init(params), params)
    others, other = jax.jit(partial(injected.update, value=1.0))(grads, injected.init(params), params)
    assert_close(others, updates, rtol=1e-5)
    assert_close(other.inner_state, state, rtol=1e-5, atol=1e-5)
    other.hyperparams["learning_rate"] = jnp.zeros(())
    still, _ = jax.jit(partial(injected.update, value=1.0))(
        grads, injected.init(params)._replace(hyperparams=other.hyperparams), params
    )
    assert all(float(abs(x).max()) == 0.0 for x in jax.tree.leaves(still))


@pytest.mark.parametrize("factory", [free_borat, partial(borat, momentum=0.0)], ids=["free_borat", "borat"])
def test_a_schedule_gets_the_number_of_batches(factory):
    constant, scheduled = (factory(learning_rate=lr) for lr in (0.25, lambda count: jnp.where(count < 4, 0.25, 0.0)))
    assert_close(run(scheduled, PARAMS, 4), run(constant, PARAMS, 4), rtol=1e-6)
    before, (_, _, after) = run(scheduled, PARAMS, 4)[2], run(scheduled, PARAMS, 10)
    assert int(after.count) == 10
    assert_close(
        after.centre, run(scheduled, PARAMS, 4)[0] if isinstance(before, BoratState) else before.centre, rtol=1e-6
    )


@over_methods
def test_gradients_are_accumulated(make):
    tx = optax.MultiSteps(make(), every_k_schedule=2)
    grads = jax.grad(parabola)(PARAMS)
    update = jax.jit(partial(tx.update, value=parabola(PARAMS)))
    updates, state = update(grads, tx.init(PARAMS), PARAMS)
    assert all(float(abs(x).max()) == 0.0 for x in jax.tree.leaves(updates))
    updates, _ = update(grads, state, PARAMS)
    expected, _ = jax.jit(partial(make().update, value=parabola(PARAMS)))(grads, make().init(PARAMS), PARAMS)
    assert_close(updates, expected, rtol=1e-6)


# Inside other transformations of JAX and Optax


@over_methods
def test_seeds_are_trained_side_by_side(make):
    tx = make()
    starts = jax.random.normal(jax.random.key(0), (3, 4))
    together = jax.jit(jax.vmap(lambda w: run(tx, w, 9, rosenbrock_of_four)))(starts)
    for i, start in enumerate(starts):
        own = jax.tree.map(operator.itemgetter(i), together)
        assert_close(own, run(tx, start, 9, rosenbrock_of_four), rtol=1e-4, atol=1e-5)


def rosenbrock_of_four(params):
    return rosenbrock(params[:2]) + rosenbrock(params[2:])


def test_chain_masks_and_labels():
    """The result is found in nested states; parameters of other transformations do not change."""
    labels = {"w": "free", "b": "sgd"}
    sgd = optax.with_extra_args_support(optax.sgd(0.1))
    makers = {"free": optax.chain(optax.clip_by_global_norm(1e9), free_borat()), "sgd": sgd, "none": borat()}
    tx = optax.multi_transform(makers, labels)
    params, result, state = run(tx, PARAMS, 30)
    assert_equal(result["b"], params["b"])
    assert float(abs(result["w"] - params["w"]).max()) > 0.0
    alone, _ = jax.lax.fori_loop(0, 30, lambda _, carry: step_of(sgd)(*carry), (PARAMS, sgd.init(PARAMS)))
    assert_close(params["b"], alone["b"], rtol=1e-5)
    assert_equal(result_of(tx, state, params), result)
    with pytest.raises(ValueError, match="state must contain a FreeBoratState, got a EmptyState"):
        free_borat_eval_params(optax.EmptyState(), params)


@over_methods
def test_batches_that_are_not_finite_are_dropped(make):
    """Without apply_if_finite, which checks gradients only and hides such batches from the transformation."""
    for tx, own in ((make(), lambda s: s), (optax.apply_if_finite(make(), 5), lambda s: s.inner_state)):
        update = jax.jit(tx.update)
        params, state = jax.jit(step_of(tx))(PARAMS, tx.init(PARAMS))
        grads = jax.grad(parabola)(params)
        bad = {**grads, "b": grads["b"].at[0].set(jnp.nan)}
        for value, g in ((jnp.inf, grads), (jnp.nan, grads), (1.0, bad)):
            updates, new = update(g, state, params, value=jnp.asarray(value))
            assert all(float(abs(x).max()) == 0.0 for x in jax.tree.leaves(updates))
            assert_equal(own(new)._replace(count=0, numbers=0), own(state)._replace(count=0, numbers=0))
            hidden = g is bad and own(new) is not new
            assert int(own(new).numbers.dropped) == (0 if hidden else 1)


def test_a_square_that_overflows_drops_the_batch():
    """Otherwise the metric would stay infinite."""
    tx, params = free_borat(), jnp.ones(3)
    updates, state = jax.jit(tx.update)(jnp.array([1e25, 1.0, 1.0]), tx.init(params), params, value=1.0)
    assert float(abs(updates).max()) == 0.0
    assert (int(state.numbers.dropped), float(state.rms.max())) == (1, 0.0)


@pytest.mark.parametrize(
    "shape", [(1 << 12, 1 << 12), (1 << 24,), ((1 << 24) + 5,), (8192, 300), (1001, 4099), (64, 64, 3, 3)]
)
@pytest.mark.parametrize("is_one_cpu", [False, True])
def test_sums_are_accurate(shape, is_one_cpu, monkeypatch):
    """The arrays are so large that a sequential sum in float32 would have an error of a thousandth."""
    monkeypatch.setattr(vectors, "_is_one_cpu", lambda: is_one_cpu)
    g = jnp.full(shape, 0.1)
    tx = borat(bundle_size=2)
    _, state = jax.jit(tx.update)(g, tx.init(g), g, value=1.0)
    assert float(state.numbers.gram[0, 0, 0]) == pytest.approx(0.01 * g.size, rel=1e-5)


@pytest.mark.parametrize("shape", [(300, 150), (17, 53, 8, 8)])
def test_blocks_of_long_arrays_make_the_same_step(shape, monkeypatch):
    """Sizes that are no multiple of the block lose no elements, also with vmap."""
    rng = np.random.default_rng(0)

    def train(is_one_cpu, params, *grads):
        monkeypatch.setattr(vectors, "_is_one_cpu", lambda: is_one_cpu)
        monkeypatch.setattr(vectors, "_BLOCK", 1 << 13)
        tx, w = free_borat(weight_decay=0.1), params
        state = tx.init(w)
        update = jax.jit(tx.update)
        for i, g in enumerate(grads):
            updates, state = update(g, state, w, value=10.0 - i)
            w = optax.apply_updates(w, updates)
        several = jax.jit(jax.vmap(partial(tx.update, value=1.0)))
        pair = jnp.stack([params, 2.0 * params])
        batched, _ = several(pair, jax.vmap(tx.init)(pair), pair)
        return w, state.numbers, batched

    with jax.enable_x64(True):
        arrays = [jnp.asarray(rng.standard_normal(shape)) for _ in range(4)]
        assert_close(train(True, *arrays), train(False, *arrays), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("is_one_cpu", [False, True])
def test_a_parameter_that_is_not_finite_leaves_the_state_consistent(is_one_cpu, monkeypatch):
    """A projection may yield one: the batch is not dropped, so its gradient is stored. Later batches are dropped."""
    monkeypatch.setattr(vectors, "_is_one_cpu", lambda: is_one_cpu)
    monkeypatch.setattr(vectors, "_BLOCK", 1 << 13)
    params, g = jnp.ones(1 << 14), jnp.ones(1 << 14)
    tx = free_borat(projection=lambda x: x.at[0].set(jnp.nan))
    update = jax.jit(tx.update)
    updates, state = update(g, tx.init(params), params, value=1.0)
    assert (int(state.numbers.batches), int(state.numbers.dropped)) == (1, 0)
    assert_equal(state.gradients[0], g)
    params = optax.apply_updates(params, updates)
    assert jnp.isnan(params).sum() == 1
    updates, later = update(2.0 * g, state, params, value=1.0)
    assert int(later.numbers.dropped) == 1
    assert_equal(later._replace(count=0, numbers=0), state._replace(count=0, numbers=0))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_step_replaces_arrays_in_place(weight_decay, monkeypatch):
    """Apart from the donated arrays, a step allocates only the sums of blocks."""
    monkeypatch.setattr(vectors, "_is_one_cpu", lambda: True)
    tx, params = free_borat(weight_decay=weight_decay), jnp.zeros((1024, 2048))
    step = jax.jit(step_of(tx, lambda x, g: (x * g).sum()), donate_argnums=(0, 1))
    compiled = step.lower(params, tx.init(params), params).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 0.2 * params.nbytes


def test_trees_of_unusual_leaves():
    """Numbers, empty arrays, None and several dtypes are preserved."""
    params = {"x": jnp.ones(()), "none": None, "empty": jnp.zeros((2, 0, 3000)), "half": jnp.ones(3, jnp.bfloat16)}
    for make in METHODS.values():
        tx = make()
        updates, _ = jax.jit(partial(tx.update, value=1.0))(params, tx.init(params), params)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), updates) == jax.tree.map(lambda x: (x.shape, x.dtype), params)
        assert float(updates["x"]) < 0.0
        assert make().update({}, make().init({}), {}, value=1.0)[0] == {}
        number = {"x": 1.0, "array": np.ones(3)}  # float64, without a warning
        assert float(tx.update(number, tx.init(number), number, value=1.0)[0]["x"]) < 0.0


@over_methods
def test_updates_are_differentiable(make):
    """Hyperparameters can be learned by gradients."""

    def loss_after_steps(lr):
        tx, params = make(learning_rate=lr), jnp.array([1.0, -2.0, 0.5])
        state = tx.init(params)
        for _ in range(3):
            params, state = step_of(tx, quartic)(params, state)
        return quartic(params)

    with jax.enable_x64(True):  # else differences are too coarse
        slope = (loss_after_steps(1e-4 + 1e-9) - loss_after_steps(1e-4 - 1e-9)) / 2e-9
        assert float(jax.grad(loss_after_steps)(1e-4)) == pytest.approx(float(slope), rel=1e-5)
        assert float(slope) < 0.0


def quartic(x):
    return jnp.sum(x**4)


@over_methods
def test_donated_buffers(make):
    tx = make()
    step = jax.jit(step_of(tx), donate_argnums=(0, 1))
    params = jax.tree.map(jnp.array, PARAMS)
    state = tx.init(params)
    for _ in range(5):
        before = params
        params, state = step(params, state)
    assert before["w"].is_deleted()
    assert_close(params, run(tx, PARAMS, 5)[0], rtol=1e-5)


def regression(params, x, y):
    return jnp.mean(jnp.square(x @ params["w"] + params["b"] - y))


REGRESSION = {"w": jnp.linspace(-1.0, 1.0, 6), "b": jnp.zeros(())}


def regression_data(batches=6):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batches, 8, 6)).astype(np.float32)
    return [(jnp.asarray(a), jnp.asarray(a.sum(1) + 0.1)) for a in x]


@over_methods
def test_sharded_arrays_and_averaged_losses(make):
    """Sharded parameters under jit, and batches spread over an axis, give the same result as one device."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    tx, named = make(), make(axis_name="data")
    step = jax.jit(step_of(tx, regression))

    def spread(params, state, x, y):
        grads = jax.grad(lambda p: jax.lax.pmean(regression(p, x, y), "data"))(params)
        value = regression(params, x, y)  # of this device's half of the batch
        updates, state = named.update(grads, state, params, value=value)
        return optax.apply_updates(params, updates), state

    whole, part = PartitionSpec(), PartitionSpec("data")
    spread = jax.jit(jax.shard_map(spread, mesh=mesh, in_specs=(whole, whole, part, part), out_specs=whole))
    shardings = {"w": NamedSharding(mesh, part), "b": NamedSharding(mesh, whole)}
    alone = REGRESSION, tx.init(REGRESSION)
    params = jax.device_put(REGRESSION, shardings)
    sharded = params, tx.init(params)
    both = REGRESSION, named.init(REGRESSION)
    for x, y in regression_data():
        alone, sharded, both = step(*alone, x, y), step(*sharded, x, y), spread(*both, x, y)
        assert_close(jax.device_get(sharded), jax.device_get(alone), rtol=1e-3, atol=1e-5)
        assert_close(jax.device_get(both), jax.device_get(alone), rtol=1e-3, atol=1e-5)
    assert sharded[0]["w"].sharding.is_equivalent_to(shardings["w"], 1)


# Checkpoints


@over_methods
@pytest.mark.parametrize("way", ["pickle", "orbax"])
def test_resumed_to_the_bit(make, way, tmp_path):
    tx = make()
    step, data = jax.jit(step_of(tx, regression)), regression_data(9)
    expected = REGRESSION, tx.init(REGRESSION)
    for i, batch in enumerate(data):
        if i == 5:  # within a bundle of three
            saved = save_and_load(expected, way, tmp_path)
            assert_equal(saved, expected)
        expected = step(*expected, *batch)
        if i >= 5:
            saved = step(*saved, *batch)
    assert_equal(saved, expected)


def save_and_load(tree, way, folder):
    if way == "pickle":
        return pickle.loads(pickle.dumps(jax.device_get(tree)))
    checkpoint = pytest.importorskip("orbax.checkpoint", reason="needs orbax-checkpoint")
    with checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "state", tree)
        checkpointer.wait_until_finished()
        return checkpointer.restore(folder / "state", jax.eval_shape(lambda: tree))


# Errors


@over_methods
def test_a_missing_loss_is_explained(make):
    tx = make()
    state = tx.init(PARAMS)
    with pytest.raises(
        ValueError, match=r"needs the loss of the batch: call update\(grads, state, params, value=loss\)"
    ):
        tx.update(PARAMS, state, PARAMS)
    with pytest.raises(ValueError, match=r"needs the loss of the batch"):
        optax.chain(optax.clip(1.0), tx).update(PARAMS, (optax.EmptyState(), state), PARAMS)
    with pytest.raises(ValueError, match="needs the parameters"):
        tx.update(PARAMS, state, value=1.0)
    with pytest.raises(ValueError, match=r"value must be a number or an array without dimensions, got shape \(2,\)"):
        tx.update(PARAMS, state, PARAMS, value=jnp.ones(2))
    for bad, dtype in ((1j * PARAMS["w"], "complex64"), (jnp.arange(4), "int32"), (jax.random.key(0), "key<fry>")):
        for call in (tx.init, lambda params: tx.update(PARAMS, state, params, value=1.0)):
            with pytest.raises(ValueError, match=rf"got {dtype} at params\['w'\]: split complex arrays into two"):
                call({**PARAMS, "w": bad})


@over_methods
def test_arguments_that_do_not_fit_are_named(make):
    tx = make()
    state = tx.init(PARAMS)
    for bad, got in ((None, "None"), (jnp.ones(()), r"shape \(\)")):
        with pytest.raises(ValueError, match=rf"grads\['b'\] must have the shape \(3,\) of the parameter, got {got}"):
            tx.update({**PARAMS, "b": bad}, state, PARAMS, value=1.0)
    for value in ("0.1", (1.0, {"accuracy": 0.5}), 1j):
        with pytest.raises(ValueError, match="value must be a real number or an array without dimensions, got"):
            tx.update(PARAMS, state, PARAMS, value=value)
    with pytest.raises(ValueError, match=r"grads\['b'\] must be real, got complex64"):
        tx.update({**PARAMS, "b": 1j * PARAMS["b"]}, state, PARAMS, value=1.0)
    other = {**PARAMS, "b": jnp.ones(4)}
    with pytest.raises(ValueError, match=r"must have the shape \(4,\) of params\['b'\], got \(3,\): it was made for"):
        tx.update(other, state, other, value=1.0)
    with pytest.raises(ValueError, match=r"state must be a \w+State, got a dict"):
        tx.update(PARAMS, {"count": 0}, PARAMS, value=1.0)


@pytest.mark.parametrize("make", [free_borat, borat])
def test_a_state_of_another_bundle_size_is_refused(make):
    for size, got in ((2, 0), (5, 3)):
        state = make(bundle_size=size).init(PARAMS)
        with pytest.raises(ValueError, match=f"must keep 1 gradients for this bundle_size, got {got}: it was made"):
            make(bundle_size=3).update(PARAMS, state, PARAMS, value=1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: free_borat(1), "bundle_size must be an integer of at least 2, got 1"),
        (lambda: borat(0.1, 9), "bundle_size must be at most 8 in JAX, got 9"),
        (lambda: free_borat(learning_rate=-1.0), "learning_rate must be a finite number of at least 0, got -1.0"),
        (lambda: borat({"w": 0.1, "b": math.inf}), "learning_rate must be a finite number of at least 0, got inf"),
        (lambda: borat(None, 3), "learning_rate must be a number unless bundle_size is 2, got None with bundle_size=3"),
        (lambda: free_borat(b1=0.0), r"b1 must be a number in \(0, 1\), got 0.0"),
        (lambda: free_borat(b2=1.0), r"b2 must be a number in \[0, 1\), got 1.0"),
        (lambda: free_borat(aim=1.5), r"aim must be a number in \(0, 1\], got 1.5"),
        (lambda: free_borat(eps=0.0), "eps must be a positive, finite number, got 0.0"),
        (lambda: free_borat(weight_decay=-0.1), "weight_decay must be a finite number of at least 0, got -0.1"),
        (lambda: borat(momentum=1.0), r"momentum must be a number in \[0, 1\), got 1.0"),
        (lambda: alig(lower_bound=math.inf), "lower_bound must be a finite number, got inf"),
        (lambda: borat(projection=3.0), "projection must be None or a function of the parameters, got 3.0"),
        (
            lambda: optax.inject_hyperparams(borat)().init(PARAMS),
            "bundle_size must be an integer, got an array; if inj",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
