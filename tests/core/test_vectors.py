"""The vector operations, in C and in PyTorch, equal their formulas in float64."""

from __future__ import annotations

import copy
import math
import warnings
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from borat import BORAT, FreeBORAT
from borat._state.slots import Part, Slot, TensorSpec
from borat._vectors import cpu
from borat._vectors import torch as in_torch
from borat._vectors.cpu import CpuVectors
from borat._vectors.torch import Average, Metric, TorchVectors
from problems import BACKENDS, batches, network, train, use_backend, vector

SIZES = (0, 1, 15, 16, 17, 63, 64, 65, 1023, 1024, 1025, 32768, 40_003)
"""At the edges of what the kernels take at once."""
THREADS = (1, 2, 5)
PIECES = (1, 2, 3, 4, 6)
COEFFICIENTS = np.array([0.5, -0.25, 1e-3, 1.0, 0.125, -0.0625])
METRIC = Metric(beta2=0.9, eps=1e-8)
AVERAGE = Average(pull=0.8, ratio=1.1, beta=0.9)
DECAY = 0.01

NEEDS_KERNELS = pytest.mark.skipif(cpu.library is None, reason="there was no C compiler for the kernels")
KERNELS = pytest.param("kernels", marks=NEEDS_KERNELS)
over_backends = pytest.mark.parametrize("backend", [KERNELS, "torch", "device"])
"""The kernels, and PyTorch's operations with numbers of the host and with tensors."""
over_host = pytest.mark.parametrize("backend", [KERNELS, "torch"])
over_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
over_pieces = pytest.mark.parametrize("pieces", PIECES)


@pytest.fixture
def threads(request):
    """Parametrise the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@cache
def _random(seed: int, dtype: torch.dtype, size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed * 1000 + size % 997), dtype=dtype)


class Case:
    """Parameters with gradients and state, each a slice of a larger tensor, and the vectors of a batch.

    Args:
        backend: the implementation.
        pieces: number of gradients, the newest included.
        dtype: of the parameters.
        keys: names of the tensors besides the gradients.
        scale: factor on the gradients and their roots of mean squares.
    """

    def __init__(self, backend: str, pieces: int, dtype: torch.dtype, *keys: str, scale: float = 1.0) -> None:
        self.backend, self.pieces, self.dtype = backend, pieces, dtype
        self._around: list[tuple[Tensor, Tensor, int]] = []
        specs = [TensorSpec(key, at_least_float32=key == "rms") for key in keys]
        specs += [TensorSpec("gradients", rows=pieces - 1)] if pieces > 1 else []
        self._slots = []
        for size in SIZES:
            param = nn.Parameter(self._inside(0, size))
            param.grad = self._inside(1, size, scale=scale)
            state = {key: self._inside(seed, size, scale=1.0) for seed, key in enumerate(keys, start=2)}
            if "rms" in keys:
                state["rms"] = (scale * state["rms"].abs()).to(torch.promote_types(dtype, torch.float32))
            if pieces > 1:
                state["gradients"] = self._inside(9, size, pieces - 1, scale=scale)
            self._slots.append(Slot(param, 0, state, specs))
        self.part = Part(self._slots, pieces, on_device=backend != "kernels")
        self.load()
        assert isinstance(self.vectors, CpuVectors if backend == "kernels" else TorchVectors)
        self.before = self.values()

    def _inside(self, seed: int, size: int, *rows: int, scale: float = 1.0) -> Tensor:
        whole = scale * torch.stack(
            [_random(10 * seed + k, self.dtype, size + 40) for k in range(rows[0] if rows else 1)]
        )
        inside = (whole if rows else whole[0]).narrow(-1, 19, size)
        self._around.append((whole, whole.clone(), size))
        return inside

    @torch.no_grad()
    def load(self, *, with_gradients: bool = True) -> None:
        self.vectors = self.part.load(with_gradients=with_gradients)

    def values(self) -> dict[str, Tensor]:
        """Return everything in float64, each as one vector; the gradients as rows, with the newest last."""
        values = {key: _joined(tensors) for key, tensors in self.part.kept.items()}
        newest = _joined([slot.param.grad for slot in self._slots])
        rows = [*map(_joined, self.part.rows), newest]
        return {"weights": _joined(self.part.weights()), "rows": torch.stack(rows), **values}

    def number(self, x: float) -> Any:
        return torch.tensor(float(x), dtype=torch.float64) if self.backend == "device" else x

    def numbers(self, x: np.ndarray) -> Any:
        return torch.from_numpy(x.copy()) if self.backend == "device" else x

    @torch.no_grad()
    def move(
        self, coefficients: np.ndarray, row: int, *, completes: bool, ok: bool = True, momentum: float = 0.9
    ) -> None:
        numbers = {"ok": self.number(ok), "completes": self.number(completes)}
        self.vectors.move(self.numbers(coefficients), self.number(row), **numbers, momentum=momentum)

    @torch.no_grad()
    def products(self, metric: Metric = METRIC, **options: bool) -> Tensor:
        numbers = Metric(*map(self.number, metric))
        return torch.as_tensor(self.vectors.metric_products(numbers, **options))

    @torch.no_grad()
    def metric_move(
        self, coefficients: np.ndarray, row: int = 0, *, ok: bool = True, is_constrained: bool = False
    ) -> None:
        """Call :meth:`products` first."""
        self.vectors.metric_move(
            self.numbers(coefficients),
            self.number(DECAY),
            Average(*map(self.number, AVERAGE)),
            self.number(row),
            ok=self.number(ok),
            is_constrained=is_constrained,
        )

    def assert_values(self, tolerance: float | None = None, **expected: Tensor) -> None:
        """Check the expected changes, and that nothing else has changed."""
        for key, value in self.values().items():
            if key in expected:
                bound = 64 * torch.finfo(self.dtype).eps if tolerance is None else tolerance
                torch.testing.assert_close(
                    value, expected[key], rtol=bound, atol=bound, msg=lambda m, k=key: f"{k}: {m}"
                )
            else:
                assert torch.equal(value, self.before[key]), key

    def assert_nothing_beside_is_written(self) -> None:
        for whole, original, size in self._around:
            for start, length in ((0, 19), (19 + size, 21)):
                assert torch.equal(whole.narrow(-1, start, length), original.narrow(-1, start, length))


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat([x.detach().double() for x in tensors])


def with_row(rows: Tensor, row: int, new: Tensor) -> Tensor:
    return torch.cat((rows[:row], new[None], rows[row + 1 :]))


# BORAT's


@over_backends
@over_dtypes
@over_pieces
def test_gram_row(pieces, dtype, backend):
    case = Case(backend, pieces, dtype, "centre")
    rows = case.before["rows"]
    for n in range(pieces):
        used = [*range(n), pieces - 1]
        expected, size = rows[used] @ rows[-1], rows.norm(dim=1)[used] * rows[-1].norm()
        for options in [{}] if backend == "kernels" else [{}, {"in_float64": True}]:
            row = torch.as_tensor(case.vectors.gram_row(case.number(n), **options))[: n + 1]
            is_exact = options or backend == "kernels" or dtype == torch.float64
            assert ((row - expected).abs() <= (1e-13 if is_exact else 1e-5) * size).all()


@over_backends
@over_dtypes
@over_pieces
@pytest.mark.parametrize("has_momentum", [False, True])
def test_move(has_momentum, pieces, dtype, backend):
    """At every position of a bundle."""
    keys = (*(["centre"] if pieces > 1 else []), *(["velocity"] if has_momentum else []))
    for row in {0, pieces // 2, pieces - 1}:
        case = Case(backend, pieces, dtype, *keys)
        old, completes = case.before, row == pieces - 1
        coefficients = np.where(np.arange(pieces) <= row, COEFFICIENTS[:pieces], 0.0)
        case.move(coefficients, row, completes=completes)
        g, base = old["rows"][-1], old["weights"] if row == 0 else old["centre"]
        step = torch.from_numpy(coefficients[:row]) @ old["rows"][:row] + coefficients[row] * g
        expected = {"weights": base - step}
        if completes and has_momentum:
            expected["velocity"] = 0.9 * old["velocity"] + step
            expected["weights"] = base - step - 0.9 * expected["velocity"]
        if not completes:
            expected |= {"centre": base, "rows": with_row(old["rows"], row, g)}
        case.assert_values(**expected)
        case.assert_nothing_beside_is_written()


@over_backends
@over_dtypes
@pytest.mark.parametrize("completes", [False, True])
@pytest.mark.parametrize("pieces", PIECES[1:])
def test_move_along_the_kept_gradients(pieces, completes, dtype, backend):
    """As in ``train`` and ``flush``; the newest gradient does not matter."""
    case = Case(backend, pieces, dtype, "centre", "velocity")
    old, row = case.before, pieces - 2
    if backend != "kernels":
        case.part._flat.rows[-1] = math.nan
    case.load(with_gradients=False)
    coefficients = np.append(COEFFICIENTS[: pieces - 1], 0.0)
    case.move(coefficients, row, completes=completes)
    step = torch.from_numpy(coefficients[:-1]) @ old["rows"][:-1]
    expected = {"weights": old["centre"] - step}
    if completes:
        expected["velocity"] = 0.9 * old["velocity"] + step
        expected["weights"] = old["centre"] - step - 0.9 * expected["velocity"]
    case.assert_values(**expected)


@NEEDS_KERNELS
def test_kernels_round_once():
    """Their results in float32 are the rounded exact results."""
    case = Case("kernels", 2, torch.float32, "centre")
    case.move(np.array([1 / 3, 1e-7]), 1, completes=True, momentum=0.0)
    old = case.before
    exact = old["centre"] - (1 / 3 * old["rows"][0] + 1e-7 * old["rows"][1])
    assert torch.equal(case.values()["weights"], exact.float().double())


# FreeBORAT's


def metric_of(old: dict[str, Tensor], metric: Metric = METRIC) -> tuple[Tensor, Tensor]:
    """Return the new root of the mean square, and the metric."""
    root = (metric.beta2 * old["rms"] ** 2 + (1.0 - metric.beta2) * old["rows"][-1] ** 2).sqrt()
    return root, root + metric.eps


def products_of(old: dict[str, Tensor], metric: Metric = METRIC) -> tuple[Tensor, ...]:
    G, z = old["rows"], old["centre"]
    scaled = G / metric_of(old, metric)[1]
    return (G @ scaled.T).reshape(-1), (scaled @ scaled.T).reshape(-1), G @ z, (G[-1] @ (z - old["weights"])).reshape(1)


def moved(old: dict[str, Tensor], coefficients: np.ndarray, metric: Metric = METRIC) -> dict[str, Tensor]:
    """Return the centre, the weights and the roots after a step."""
    root, D = metric_of(old, metric)
    y, z = old["weights"], old["centre"]
    new = z - torch.from_numpy(coefficients) @ (old["rows"] / D) - DECAY * y
    weights = new + AVERAGE.pull * (AVERAGE.ratio * (y - z) - AVERAGE.beta * (new - z))
    return {"centre": new, "weights": weights, "rms": root}


@over_backends
@over_dtypes
@over_pieces
def test_metric_products(pieces, dtype, backend):
    case = Case(backend, pieces, dtype, "centre", "rms")
    expected = torch.cat(products_of(case.before))
    tolerance = 256 * torch.finfo(dtype).eps * expected.abs().max().item()
    torch.testing.assert_close(case.products(), expected, rtol=0.0, atol=tolerance)


@over_backends
@pytest.mark.parametrize("scale", [1e-36, 1e-30, 1e-20, 1e20, 1e30, 1e36])
@pytest.mark.parametrize("pieces", [1, 2])
def test_metric_products_of_extreme_gradients(pieces, scale, backend):
    """Also if products leave the range of float32."""
    case = Case(backend, pieces, torch.float32, "centre", "rms", scale=scale)
    expected = products_of(case.before)
    found = case.products(**({} if backend == "kernels" else {"in_float64": True}))
    for a, b in zip(found.split([len(x) for x in expected]), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0.0, atol=1e-4 * b.abs().max().item())


@over_backends
@over_dtypes
@pytest.mark.parametrize("is_constrained", [False, True])
@over_pieces
def test_metric_move(pieces, is_constrained, dtype, backend):
    case = Case(backend, pieces, dtype, "centre", "rms")
    old, coefficients, row = case.before, COEFFICIENTS[-pieces:], max(pieces - 2, 0)
    case.products()
    case.metric_move(coefficients, row, is_constrained=is_constrained)
    expected = moved(old, coefficients)
    if pieces > 1:
        expected["rows"] = with_row(old["rows"], row, old["rows"][-1])
    if is_constrained:  # the projection halves the centre
        torch._foreach_mul_(case.part.kept["centre"], 0.5)
        with torch.no_grad():
            case.vectors.after_projection(Average(*map(case.number, AVERAGE)), case.number(True))
        z, x = 0.5 * expected["centre"], old["centre"] + AVERAGE.ratio * (old["weights"] - old["centre"]) / AVERAGE.beta
        expected |= {"centre": z, "weights": z + AVERAGE.pull * AVERAGE.beta * (x - z)}
    case.assert_values(**expected)
    case.assert_nothing_beside_is_written()


@over_host
@pytest.mark.parametrize(("scale", "coefficient"), [(1e-30, 1e22), (1e-30, 1e45), (1e30, 1e-3), (1e30, 1e-42)])
def test_coefficients_beyond_float32(scale, coefficient, backend):
    """If the result is within the range of float32."""
    metric = METRIC._replace(eps=1e-8 if coefficient < 1e40 else 1.0)
    case = Case(backend, 1, torch.float32, "centre", "rms", scale=scale)
    case.products(metric)
    case.metric_move(np.array([coefficient]))
    expected = moved(case.before, np.array([coefficient]), metric)
    found = case.values()
    for key in ("centre", "weights"):
        torch.testing.assert_close(found[key], expected[key], rtol=1e-5, atol=1e-5)
    case = Case(backend, 2, torch.float32, "centre", scale=1e-38)
    coefficients = np.array([3e38, 1e39])
    case.move(coefficients, 1, completes=True)
    expected = case.before["centre"] - torch.from_numpy(coefficients) @ case.before["rows"]
    torch.testing.assert_close(case.values()["weights"], expected, rtol=1e-5, atol=1e-5)


# Both


@pytest.mark.parametrize("backend", ["torch", "device"])
def test_bfloat16(backend):
    eps = torch.finfo(torch.bfloat16).eps
    case = Case(backend, 3, torch.bfloat16, "centre", "rms")
    expected = torch.cat(products_of(case.before))
    torch.testing.assert_close(case.products(), expected, rtol=0.0, atol=1e-5 * expected.abs().max().item())
    case.metric_move(COEFFICIENTS[:3], 1)
    rows = with_row(case.before["rows"], 1, case.before["rows"][-1])
    case.assert_values(2 * eps, rows=rows, **moved(case.before, COEFFICIENTS[:3]))
    case = Case(backend, 2, torch.bfloat16, "centre")
    case.move(COEFFICIENTS[:2], 1, completes=True)
    step = torch.from_numpy(COEFFICIENTS[:2]) @ case.before["rows"]
    case.assert_values(2 * eps, weights=case.before["centre"] - step)


@over_backends
@over_dtypes
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, 39_999])
def test_gradients_that_are_not_finite(where, bad, dtype, backend):
    """The products are not finite, and the dropped batch changes nothing."""
    for keys in (("centre", "velocity"), ("centre", "rms")):
        case = Case(backend, 2, dtype, *keys)
        case.part.slots[-1].param.grad[where] = bad
        case.load()
        case.before = case.values()
        case.before["rows"] = case.before["rows"][:-1]
        if "rms" in keys:
            assert not case.products().isfinite().all()
            case.metric_move(COEFFICIENTS[:2] * math.nan, ok=False)
        else:
            assert not torch.as_tensor(case.vectors.gram_row(case.number(1))).isfinite().all()
            case.move(COEFFICIENTS[:2] * math.nan, 1, completes=False, ok=False)
        after = case.values()
        assert torch.equal(after.pop("rows")[:-1], case.before.pop("rows"))
        assert all(torch.equal(value, case.before[key]) for key, value in after.items())


@NEEDS_KERNELS
@over_dtypes
@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("threads", THREADS, indirect=True)
def test_bits_depend_neither_on_the_threads_nor_on_the_caches(threads, is_large, dtype, monkeypatch):
    """Long vectors bypass the caches, in blocks of 16 bytes, at any alignment."""

    def results() -> list[Tensor]:
        found = []
        for pieces in (1, 2, 4):
            case = Case("kernels", pieces, dtype, "centre", "rms")
            found.append(case.products())
            case.metric_move(COEFFICIENTS[:pieces])
            found += case.values().values()
            case.assert_nothing_beside_is_written()
            case = Case("kernels", pieces, dtype, *(["centre"] if pieces > 1 else []), "velocity")
            found.append(torch.from_numpy(case.vectors.gram_row(pieces - 1)))
            case.move(COEFFICIENTS[:pieces], pieces - 1, completes=True)
            found += case.values().values()
            case.assert_nothing_beside_is_written()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(cpu, "_LARGE", 0 if is_large else math.inf)
        ours = results()
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(ours, results(), strict=True))


@pytest.mark.parametrize("cls", [BORAT, FreeBORAT])
@pytest.mark.parametrize("backend", BACKENDS)
def test_backward_through_overwritten_weights_is_noticed(backend, cls, monkeypatch):
    use_backend(backend, monkeypatch)
    p = nn.Parameter(torch.ones(3))
    optimizer = cls([p])
    loss = p.square().sum()
    loss.backward(retain_graph=True)
    optimizer.step(loss=loss)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("cls", [BORAT, FreeBORAT])
@pytest.mark.parametrize(("first", "then"), [BACKENDS, BACKENDS[::-1]])
def test_backends_take_over_from_each_other(first, then, cls, monkeypatch):
    """A checkpoint from a machine with kernels resumes on one without, also within a bundle."""
    model, data = network(), batches(15)
    whole = copy.deepcopy(model)
    expected = train(whole, cls(whole.parameters(), bundle_size=4), data)[-1]
    optimizer = cls(model.parameters(), bundle_size=4)
    with monkeypatch.context() as patch:
        use_backend(first, patch)
        train(model, optimizer, data[:7])
    use_backend(then, monkeypatch)
    other = copy.deepcopy(model)
    restored = cls(other.parameters(), bundle_size=4)
    restored.load_state_dict(optimizer.state_dict())
    restored.eval()
    restored.train()
    train(other, restored, data[7:])
    torch.testing.assert_close(vector(other), expected, rtol=0.0, atol=1e-11)


class Wrapper(torch.Tensor):
    """A tensor subclass without memory of its own, like quantised and asynchronous tensors."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        def unwrap(x):
            return x.inner if isinstance(x, cls) else x

        arguments, options = torch.utils._pytree.tree_map(unwrap, (arguments, options or {}))
        return function(*arguments, **options)


@pytest.mark.parametrize("disguise", [Wrapper, lambda g: torch._neg_view(-g)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_that_are_not_what_their_memory_says(backend, disguise, monkeypatch):
    use_backend(backend, monkeypatch)
    points = []
    for wrap in (lambda g: g, disguise):
        p = nn.Parameter(torch.ones(40))
        optimizer = BORAT([p], 0.1, 3)
        for seed in range(4):
            p.grad = wrap(torch.randn(40, generator=torch.Generator().manual_seed(seed)))
            optimizer.step(loss=1.0)
        points.append(p.detach())
    assert torch.equal(*points)


# Compiled, as on GPUs


@pytest.fixture
def compiled(monkeypatch):
    """Compile for the CPU as for a GPU, with empty caches."""
    use_backend("torch", monkeypatch)
    monkeypatch.setattr(in_torch, "_not_compilable", set())
    in_torch._compile.cache_clear()
    torch._dynamo.reset()
    in_torch.COMPILED_DEVICES.add("cpu")
    yield in_torch
    in_torch.COMPILED_DEVICES.discard("cpu")
    in_torch._compile.cache_clear()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from the compiler's imports
@pytest.mark.filterwarnings("ignore:Skipping serialization of")  # of PyTorch 2.6's compiler, about its own settings
@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("cls", [BORAT, FreeBORAT])
def test_compiled_steps_are_those_of_the_host(cls, capturable, compiled):
    model, data = network(), batches(6)
    twin = copy.deepcopy(model)
    points = train(model, cls(model.parameters(), capturable=capturable), data)
    assert compiled._compile.cache_info().currsize >= (3 if capturable else 2), "compiled functions"
    assert not compiled._not_compilable
    compiled.COMPILED_DEVICES.discard("cpu")
    expected = train(twin, cls(twin.parameters(), capturable=capturable), data)
    torch.testing.assert_close(points, expected, rtol=0.0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("cls", [BORAT, FreeBORAT])
def test_compiled_for_many_sizes(cls, compiled, monkeypatch):
    """Dynamo compiles a function for at most 8 cases; they must not depend on the length of a vector."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    params = [nn.Parameter(torch.ones(size)) for size in range(2, 14)]
    optimizer = cls([{"params": p} for p in params])
    for _ in range(2):
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step(loss=1.0)
    assert not compiled._not_compilable


@pytest.mark.slow
@pytest.mark.parametrize("capturable", [False, True])
def test_without_a_compiler_steps_run_uncompiled(capturable, compiled, monkeypatch):
    model, data = network(), batches(4)
    twin = copy.deepcopy(model)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=_broken))
    with pytest.warns(UserWarning, match="torch.compile failed, so borat.s steps run uncompiled") as record:
        points = train(model, FreeBORAT(model.parameters(), capturable=capturable), data)
    assert len(record) == 1
    compiled.COMPILED_DEVICES.discard("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = train(twin, FreeBORAT(twin.parameters(), capturable=capturable), data)
    torch.testing.assert_close(points, expected, rtol=0.0, atol=0.0)


def _broken(graph, inputs):
    raise RuntimeError("no compiler")
