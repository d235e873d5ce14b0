"""In float64, the transformations equal the authors' trajectories, the literal twins and the PyTorch optimizers."""

from __future__ import annotations

import ast
import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import vector_to_parameters

jax = pytest.importorskip("jax", reason="needs the jax extra")
pytest.importorskip("optax", reason="needs the jax extra")

import jax.numpy as jnp  # noqa: E402

from borat import BORAT, FreeBORAT  # noqa: E402
from borat.constraints import L2Ball  # noqa: E402
from jax_problems import arrays_of, cross_entropy, data_of, flat, hinge  # noqa: E402
from jax_problems import train as train_in_jax  # noqa: E402
from problems import as_functions, batches, network, vector  # noqa: E402
from problems import train as train_in_torch  # noqa: E402
from reference import borat as literal_borat  # noqa: E402
from reference import free_borat as literal_free_borat  # noqa: E402
from reference import project_l2  # noqa: E402

GOLDEN = np.load(Path(__file__).parents[1] / "core" / "golden.npz")
CASES = sorted({key.split("/")[0] for key in GOLDEN})
BALL, NO_BALL = 2.2, 1e9


@pytest.fixture(autouse=True)
def _in_float64():
    with jax.enable_x64(True):
        yield


def golden_loss(meta):
    activation = {"Tanh": jnp.tanh, "ReLU": jax.nn.relu}[meta["activation"]]
    loss = cross_entropy if meta["loss"] == "ce" else hinge
    return LOSSES.setdefault((loss, activation), lambda p, x, y: loss(p, x, y, activation))


LOSSES = {}
"""One function for each loss, for which one compilation is enough."""


@pytest.mark.parametrize("case", CASES)
def test_golden_trajectory(case):
    record = {key.split("/")[1]: GOLDEN[key] for key in GOLDEN if key.startswith(case + "/")}
    meta = ast.literal_eval(str(record["meta"]))
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).double()
    vector_to_parameters(torch.from_numpy(record["w0"]), model.parameters())
    first, *rest = arrays_of(model)
    params = {"first": [first, rest[0]], "second": rest[1:]}
    lr = meta["lr"]
    if meta["group_lrs"]:  # a prefix of the parameters' tree
        lr = dict(zip(("first", "second"), meta["group_lrs"], strict=True))
    radius = meta["radius"]
    options = {"learning_rate": lr, "momentum": meta["momentum"], "radius": NO_BALL if radius is None else radius}
    if radius is not None:
        params = jax.tree.map(lambda p: p * min(1.0, radius / np.linalg.norm(record["w0"])), params)
    size = 2 if meta["algorithm"] == "alig" else meta["bundle_size"]
    data = jnp.asarray(record["X"]), jnp.asarray(record["Y"])
    factors = jnp.ones(len(record["X"]))
    points, _, numbers, losses = train_in_jax("borat", size, params, data, factors, options, golden_loss(meta))
    np.testing.assert_allclose(losses, record["losses"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(flat(points), record["points"], rtol=0, atol=1e-9)
    completed = np.flatnonzero(np.asarray(numbers.position) == 0)
    np.testing.assert_allclose(flat(points)[completed], record["iterates"], rtol=0, atol=1e-9)
    alpha = record["alpha"]
    np.testing.assert_allclose(np.asarray(numbers.alpha)[completed, : alpha.shape[1]], alpha, rtol=0, atol=1e-9)


FREE = {
    "default": {},
    "decay": {"weight_decay": 0.3},
    "ball": {"radius": BALL},
    "betas": {"betas": (0.5, 0.9), "eps": 1e-3, "lr": 0.7},
    "aim": {"aim": 0.8, "lower_bound": 0.1, "weight_decay": 0.1, "radius": BALL},
}


def options_of(lr=None, betas=(0.9, 0.99), aim=None, radius=NO_BALL, **options):
    """Return FreeBORAT's options by their names in JAX; numbers are traced, so that cases share a compilation."""
    defaults = {"lower_bound": 0.0, "weight_decay": 0.0, "eps": 1e-8}
    own = {"learning_rate": 1.0 if lr is None else lr, "b1": betas[0], "b2": betas[1], "radius": radius}
    return {**defaults, **own, **options, **({} if aim is None else {"aim": aim})}


@pytest.mark.parametrize("case", FREE)
@pytest.mark.parametrize("bundle_size", [2, 3, 5])
def test_free_borat_equals_the_literal_twin(bundle_size, case):
    options, data = FREE[case], batches(12)
    model = network()
    radius = options.get("radius", NO_BALL)
    L2Ball(radius)(model.parameters())
    own = {key: value for key, value in options.items() if key != "radius"}
    functions = as_functions(model, data)
    twin = list(literal_free_borat(vector(model).numpy(), functions, bundle_size, project=project_l2(radius), **own))
    points, results, _, _ = train_in_jax(
        "free_borat", bundle_size, arrays_of(model), data_of(data), jnp.ones(12), options_of(**options)
    )
    np.testing.assert_allclose(flat(points), [y for y, *_ in twin], rtol=0, atol=1e-9)
    np.testing.assert_allclose(flat(results), [x for _, x, *_ in twin], rtol=0, atol=1e-9)


@pytest.mark.parametrize("bundle_size", [1, 4])
def test_borat_equals_the_literal_twin(bundle_size):
    data, model = batches(12), network()
    pieces = max(bundle_size - 1, 1)
    twin = list(
        literal_borat(vector(model).numpy(), as_functions(model, data), 12 // pieces, bundle_size, 0.5, 0.9, 0.1)
    )
    options = {"learning_rate": 0.5, "momentum": 0.9, "lower_bound": 0.1, "radius": NO_BALL}
    points, results, _, _ = train_in_jax("borat", bundle_size, arrays_of(model), data_of(data), jnp.ones(12), options)
    np.testing.assert_allclose(flat(points), [point for point, _ in twin], rtol=0, atol=1e-9)
    centres = [vector(model).numpy(), *(point for point, _ in twin[pieces - 1 :: pieces])]
    expected = [centres[(i + 1) // pieces] for i in range(12)]
    np.testing.assert_allclose(flat(results), expected, rtol=0, atol=1e-9)


TORCH = {
    "FreeBORAT, N = 2": ("free_borat", 2, {"weight_decay": 0.1}),
    "FreeBORAT, N = 3": ("free_borat", 3, {"radius": BALL, "weight_decay": 0.1}),
    "FreeBORAT, N = 5": ("free_borat", 5, {"radius": BALL, "lr": 0.7}),
    "BORAT, N = 1": ("borat", 1, {"lr": 0.3, "momentum": 0.9}),
    "BORAT, N = 3": ("borat", 3, {"lr": 0.5, "momentum": 0.9, "radius": BALL}),
    "BORAT, N = 4": ("borat", 4, {"lr": 2.0, "momentum": 0.5, "lower_bound": 0.1}),
    "ALI-G without a cap": ("borat", 2, {"lr": None, "momentum": 0.9}),
}


@pytest.mark.parametrize("case", TORCH)
def test_equals_pytorch_with_dropped_batches(case):
    """Batches are dropped for a non-finite loss, also within a bundle, and for outliers among the gradients."""
    method, size, options = TORCH[case]
    radius = options.get("radius")
    data = batches(24)
    factors = np.ones(24)
    factors[[4, 9, 10]] = np.nan, np.inf, np.nan
    factors[15] = 1e6
    model = network()
    own = {key: value for key, value in options.items() if key != "radius"}
    constraint = None if radius is None else L2Ball(radius)
    cls = FreeBORAT if method == "free_borat" else BORAT
    optimizer = cls(model.parameters(), bundle_size=size, constraint=constraint, **own)
    start = arrays_of(copy.deepcopy(model))
    expected, results = [], []
    with pytest.warns(UserWarning, match="dropped"):
        for batch, factor in zip(data, factors, strict=True):
            expected += train_in_torch(model, optimizer, [batch], lambda loss, factor=factor: factor * loss)
            optimizer.eval()
            results.append(vector(model))
            optimizer.train()
    if method == "free_borat":
        in_jax = options_of(**options)
    else:
        in_jax = {"momentum": own["momentum"], "lower_bound": own.get("lower_bound", 0.0)}
        in_jax |= {"learning_rate": own["lr"], "radius": NO_BALL if radius is None else radius}
    points, averages, numbers, _ = train_in_jax(method, size, start, data_of(data), jnp.asarray(factors), in_jax)
    np.testing.assert_allclose(flat(points), torch.stack(expected), rtol=0, atol=1e-9)
    np.testing.assert_allclose(flat(averages), torch.stack(results), rtol=0, atol=1e-9)
    assert int(numbers.dropped[-1]) == optimizer.dropped_batches >= 3
    assert int(numbers.zeros[-1]) == optimizer.zero_steps
