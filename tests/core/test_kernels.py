"""Our own CPU kernels do what PyTorch's do: on lists of tensors, and as the optimizer uses them."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from borat import BORAT, kernels, metric, vectors
from borat.vectors import Backend
from problems import batches, network, train, use_backend

SIZES = (0, 1, 15, 16, 17, 63, 64, 65, 1023, 1024, 1025, 32768, 32769, 100_003)
"""At the edges of what the kernels take at once."""

pytestmark = pytest.mark.skipif(not kernels.are_there(), reason="there was no C compiler for the kernels")


@cache
def _random(seed: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size + 3, generator=generator, dtype=dtype) for size in SIZES]


def vector(seed: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """One tensor of each size, within larger ones, so that memory beside them shows."""
    return [x.clone()[1:-2] for x in _random(seed, dtype)]


@pytest.fixture(params=[torch.float32, torch.float64])
def dtype(request):
    return request.param


THREADS = [1, 2, 5]


@pytest.fixture(params=THREADS)
def threads(request):
    with on_threads(request.param):
        yield


@pytest.fixture(params=[*((Backend.OWN, n) for n in THREADS), (Backend.FUSED, 1), (Backend.PLAIN, 1)], ids=str)
def backend(request):
    """Each of them; ours on several threads, of which those of PyTorch know nothing."""
    chosen, threads = request.param
    with on_threads(threads):
        yield chosen


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("terms", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("keep", [False, True])
def test_move(backend, terms, keep, dtype):
    base, xs = vector(0, dtype), [vector(k + 1, dtype) for k in range(terms)]
    weights, old_base, last_term = (vector(seed, dtype) for seed in (10, 11, 12))
    coefficients = [0.5, -0.25, 1e-3, 1.0, 0.125, -0.0625][:terms]
    kept = {"old_base": old_base, "last_term": last_term} if keep else {}
    vectors.move(weights, base, list(zip(coefficients, xs, strict=True)), backend, **kept)
    for i, b in enumerate(base):
        exact = b.double() - sum(c * x[i].double() for c, x in zip(coefficients, xs, strict=True))
        torch.testing.assert_close(weights[i].double(), exact, rtol=0, atol=16 * torch.finfo(dtype).eps)
        if keep:
            assert torch.equal(old_base[i], b)
            assert torch.equal(last_term[i], xs[-1][i])


@pytest.mark.parametrize("in_place", [False, True])
def test_move_with_momentum(backend, in_place, dtype):
    base, x, y, velocity = (vector(seed, dtype) for seed in range(4))
    weights = base if in_place else vector(9, dtype)
    step = [0.5 * a.double() + 0.25 * b.double() for a, b in zip(x, y, strict=True)]
    v = [0.9 * -2.0 * a.double() - u for a, u in zip(velocity, step, strict=True)]
    exact = [b.double() + 0.9 * a - u for b, a, u in zip(base, v, step, strict=True)]
    terms = [(0.5, x), (0.25, y)]
    scale = vectors.move_with_momentum(weights, base, terms, velocity, backend, momentum=0.9, scale=2.0)
    tolerance = {"rtol": 0, "atol": 32 * torch.finfo(dtype).eps}
    for i in range(len(SIZES)):
        torch.testing.assert_close(weights[i].double(), exact[i], **tolerance)
        torch.testing.assert_close(-scale * velocity[i].double(), v[i], **tolerance)


def test_results_are_rounded_once():
    """In float32 the kernels are as exact as float32 can be."""
    base, x, y = (vector(seed, torch.float32) for seed in range(3))
    weights = vector(3, torch.float32)
    kernels.move(weights, base, [(1 / 3, x), (1e-7, y)])
    for w, b, a, c in zip(weights, base, x, y, strict=True):
        assert torch.equal(w, (b.double() - (1 / 3 * a.double() + 1e-7 * c.double())).float())


@pytest.mark.usefixtures("threads")
def test_nothing_beside_the_tensors_is_written(dtype):
    around = [torch.full((size + 64,), 7.0, dtype=dtype) for size in SIZES]
    inside = [t[32 : 32 + size] for t, size in zip(around, SIZES, strict=True)]
    kernels.move(inside, inside, [(1.0, vector(1, dtype))], old_base=vector(2, dtype), velocity=vector(3, dtype))
    for t, size in zip(around, SIZES, strict=True):
        assert (t[:32] == 7.0).all()
        assert (t[32 + size :] == 7.0).all()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9])
def test_products(count, dtype):
    left = vector(0, dtype)
    terms = [*(vector(1 + k, dtype) for k in range(count - 1)), left]
    expected = [sum(float(a.double() @ b.double()) for a, b in zip(left, y, strict=True)) for y in terms]
    torch.testing.assert_close(kernels.products(left, terms).tolist(), expected, rtol=1e-13, atol=1e-10)


@pytest.mark.usefixtures("threads")
def test_bits_do_not_depend_on_the_threads(dtype):
    def results() -> list[torch.Tensor]:
        weights, velocity = vector(0, dtype), vector(1, dtype)
        kernels.move(weights, weights, [(0.3, vector(2, dtype))], velocity=velocity, decay=0.9, momentum=0.9)
        return [torch.from_numpy(kernels.products(weights, [weights, velocity])), *weights, *velocity]

    several = results()
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(several, results(), strict=True))


def test_coefficients_beyond_float32():
    """As long as the result is within it."""
    weights = [torch.zeros(2)]
    kernels.move(weights, weights, [(1e39, [torch.tensor([0.0, 1e-39])])])
    torch.testing.assert_close(weights[0], torch.tensor([0.0, -1.0]), rtol=1e-5, atol=0)


def test_backward_through_overwritten_weights_is_noticed():
    p = nn.Parameter(torch.ones(3))
    optimizer = BORAT([p], 0.1, 3)
    loss = p.square().sum()
    loss.backward(retain_graph=True)
    optimizer.step(loss=loss)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("bundle_size", [1, 2, 3, 5])
def test_optimizer_on_all_backends(bundle_size, momentum, monkeypatch):
    model, data = network(), batches(14)
    points = []
    for backend in Backend:
        with monkeypatch.context() as patch:
            use_backend(backend, patch)
            twin = copy.deepcopy(model)
            points.append(train(twin, BORAT(twin.parameters(), 0.5, bundle_size, momentum=momentum), data))
    for other in points[1:]:
        torch.testing.assert_close(points[0], other, rtol=0, atol=1e-11)


@pytest.mark.parametrize("first", Backend)
@pytest.mark.parametrize("then", Backend)
def test_backends_take_over_from_each_other(first, then, monkeypatch):
    """A checkpoint of a machine with kernels continues on one without, also within a bundle."""
    model, data = network(), batches(15)
    whole = copy.deepcopy(model)
    expected = train(whole, BORAT(whole.parameters(), 0.5, 4), data)[-1]
    optimizer = BORAT(model.parameters(), 0.5, 4)
    with monkeypatch.context() as patch:
        use_backend(first, patch)
        train(model, optimizer, data[:7])
    assert optimizer.bundle_position == 1
    use_backend(then, monkeypatch)
    other = copy.deepcopy(model)
    restored = BORAT(other.parameters(), 0.5, 4)
    restored.load_state_dict(optimizer.state_dict())
    restored.eval()
    restored.train()
    train(other, restored, data[7:])
    point = parameters_to_vector(other.parameters()).detach()
    torch.testing.assert_close(point, expected, rtol=0, atol=1e-11)


# FreeBORAT's kernels, compared with PyTorch's in float64


ROLL = {"decay": 0.01, "pull": 0.8, "ratio": 1.1, "beta": 0.9}


def bundle(pieces: int, dtype: torch.dtype, scale: float = 1.0):
    """Pieces, weights, and the metric."""
    gradients = [[scale * x for x in vector(k, dtype)] for k in range(pieces)]
    centre, weights, rms = (vector(seed, dtype) for seed in (20, 21, 22))
    rms = [scale * s.abs() for s in rms]
    return gradients, weights, metric.Metric(centre, rms, beta2=0.9, correction=1.3, eps=1e-8)


def in_double(gradients, weights, scale):
    def copied(tensors):
        return [t.double() if t.dtype == torch.float32 else t.clone() for t in tensors]

    lists = scale._replace(centre=copied(scale.centre), rms=copied(scale.rms))
    return [copied(g) for g in gradients], copied(weights), lists


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("pieces", [1, 2, 3, 4, 6])
def test_measure(pieces, dtype):
    case = bundle(pieces, dtype)
    expected = metric.sums(*in_double(*case), Backend.PLAIN, precise=True)
    sums = torch.from_numpy(kernels.measure(*case))
    tolerance = 16 * torch.finfo(dtype).eps * expected.max().item()
    torch.testing.assert_close(sums, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("scale", [1e-36, 1e-30, 1e-20, 1e20, 1e30, 1e36])
@pytest.mark.parametrize("pieces", [1, 2])
def test_measure_of_extreme_gradients(pieces, scale):
    """Also where products leave the range of float32, as here with eps much longer than gradients."""
    case = bundle(pieces, torch.float32, scale)
    expected = metric.sums(*in_double(*case), Backend.PLAIN, precise=True)
    sums = torch.from_numpy(kernels.measure(*case))
    pairs = pieces * (pieces + 1) // 2
    kinds = (pairs, pairs, pieces + 1)  # each of its own magnitude
    for a, b in zip(sums.split(kinds), expected.split(kinds), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4 * b.abs().max().item())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, 99_999])
def test_measure_of_gradients_that_are_not_finite(where, bad, dtype):
    gradients, weights, scale = bundle(2, dtype)
    gradients[-1][-1][where] = bad
    sums = torch.tensor(kernels.measure(gradients, weights, scale))
    assert not sums.isfinite().all()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("pieces", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("before_projection", [False, True])
def test_roll(before_projection, pieces, dtype):
    case = bundle(pieces, dtype)
    twin = in_double(*case)
    coefficients = [0.5, -0.25, 1e-3, 3.0, 0.0, 0.1][-pieces:]
    newest = [g.clone() for g in case[0][-1]]
    for backend, (gradients, weights, scale) in ((Backend.OWN, case), (Backend.PLAIN, twin)):
        options = {**ROLL, "keep": gradients[0], "before_projection": before_projection}
        metric.roll(gradients, weights, scale, coefficients, backend, **options)
    tolerance = 64 * torch.finfo(dtype).eps
    lists = [(case[1], twin[1]), (case[2].centre, twin[2].centre), (case[2].rms, twin[2].rms)]
    for ours, exact in lists:
        for a, b in zip(ours, exact, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance)
    assert all(torch.equal(a, b) for a, b in zip(case[0][0], newest, strict=True))


@pytest.mark.parametrize(("scale", "coefficient"), [(1e-30, 1e22), (1e-30, 1e45), (1e30, 1e-3), (1e30, 1e-42)])
def test_roll_with_coefficients_beyond_float32(scale, coefficient):
    gradients, weights, adam = bundle(1, torch.float32, scale)
    adam = adam._replace(eps=1e-8 if coefficient < 1e40 else 1.0)
    twin = in_double(gradients, weights, adam)
    for backend, case in ((Backend.OWN, (gradients, weights, adam)), (Backend.PLAIN, twin)):
        metric.roll(*case, [coefficient], backend, keep=None, before_projection=False, **ROLL)
    for a, b in zip(adam.centre + weights, twin[2].centre + twin[1], strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_bits_of_the_bundle_do_not_depend_on_the_threads(pieces, dtype):
    def results() -> list[torch.Tensor]:
        gradients, weights, scale = bundle(pieces, dtype)
        sums = torch.tensor(kernels.measure(gradients, weights, scale))
        kernels.roll(gradients, weights, scale, [0.1] * pieces, keep=gradients[0], before_projection=False, **ROLL)
        return [sums, *weights, *scale.centre, *scale.rms, *gradients[0]]

    several = results()
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(several, results(), strict=True))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_nothing_beside_the_bundle_is_written(pieces, dtype):
    gradients = [vector(k, dtype) for k in range(pieces)]
    around = [[torch.full((size + 64,), 7.0, dtype=dtype) for size in SIZES] for _ in range(4)]
    weights, centre, rms, keep = (
        [t[31 : 31 + size] for t, size in zip(tensors, SIZES, strict=True)] for tensors in around
    )
    scale = metric.Metric(centre, rms, beta2=0.9, correction=1.3, eps=1e-8)
    kernels.roll(gradients, weights, scale, [0.1] * pieces, keep=keep, before_projection=False, **ROLL)
    for tensors in around:
        for t, size in zip(tensors, SIZES, strict=True):
            assert (t[:31] == 7.0).all()
            assert (t[31 : 31 + size] != 7.0).all()
            assert (t[31 + size :] == 7.0).all()


class Wrapper(torch.Tensor):
    """A tensor without memory of its own, as quantised and asynchronous ones are."""

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
def test_gradients_that_are_not_what_their_memory_says(disguise):
    points = []
    for wrap in (lambda g: g, disguise):
        p = nn.Parameter(torch.ones(40))
        optimizer = BORAT([p], 0.1, 3)
        for seed in range(4):
            p.grad = wrap(torch.randn(40, generator=torch.Generator().manual_seed(seed)))
            optimizer.step(loss=1.0)
        points.append(p.detach())
    assert torch.equal(*points)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_long_vectors(offset, dtype):
    """Those are written past the caches, in runs of 16 bytes, wherever they begin and end."""
    size = kernels._LARGE + 5
    weights, base, x, velocity = (
        torch.randn(size + offset, dtype=dtype, generator=torch.Generator().manual_seed(seed))[offset:]
        for seed in range(4)
    )
    exact = (base.double() - 0.3 * x.double()).to(dtype)
    old_base, last_term = torch.zeros_like(base), torch.zeros_like(base)
    kernels.move([weights], [base], [(0.3, [x])], old_base=[old_base], last_term=[last_term])
    assert torch.equal(weights, exact)
    assert torch.equal(old_base, base)
    assert torch.equal(last_term, x)
    kernels.move([weights], [base], [(0.3, [x])], velocity=[velocity], decay=0.0, momentum=0.5)
    assert torch.equal(velocity, (0.3 * x.double()).to(dtype))
    torch.testing.assert_close(weights, base - 0.45 * x)
