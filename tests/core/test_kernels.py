"""Our own CPU kernels do what PyTorch's do: on lists of tensors, and as the optimizer uses them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from borat import BORAT, kernels, vectors
from borat.vectors import Backend
from problems import batches, network, train, use_backend

SIZES = (0, 1, 15, 16, 17, 1023, 1024, 1025, 32768, 32769, 100_003)
"""At the edges of what the kernels take at once."""

pytestmark = pytest.mark.skipif(not kernels.are_there(), reason="there was no C compiler for the kernels")


def vector(seed: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """One tensor of each size, within larger ones, so that memory beside them shows."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size + 3, generator=generator, dtype=dtype)[1:-2] for size in SIZES]


@pytest.fixture(params=[torch.float32, torch.float64])
def dtype(request):
    return request.param


@pytest.fixture(params=[1, 2, 5])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("terms", [1, 2, 4])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("backend", Backend)
def test_move(backend, terms, keep, dtype):
    base, xs = vector(0, dtype), [vector(k + 1, dtype) for k in range(terms)]
    weights, old_base, last_term = (vector(seed, dtype) for seed in (10, 11, 12))
    coefficients = [0.5, -0.25, 1e-3, 3.0][:terms]
    kept = {"old_base": old_base, "last_term": last_term} if keep else {}
    vectors.move(weights, base, list(zip(coefficients, xs, strict=True)), backend, **kept)
    for i, b in enumerate(base):
        exact = b.double() - sum(c * x[i].double() for c, x in zip(coefficients, xs, strict=True))
        torch.testing.assert_close(weights[i].double(), exact, rtol=0, atol=16 * torch.finfo(dtype).eps)
        if keep:
            assert torch.equal(old_base[i], b)
            assert torch.equal(last_term[i], xs[-1][i])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("backend", Backend)
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
def test_products(dtype):
    left, x = vector(0, dtype), vector(1, dtype)
    expected = [sum(float(a.double() @ b.double()) for a, b in zip(left, y, strict=True)) for y in (x, left)]
    torch.testing.assert_close(kernels.products(left, [x, left]), expected, rtol=1e-13, atol=1e-10)


@pytest.mark.usefixtures("threads")
def test_bits_do_not_depend_on_the_threads(dtype):
    def results() -> list[torch.Tensor]:
        weights, velocity = vector(0, dtype), vector(1, dtype)
        kernels.move(weights, weights, [(0.3, vector(2, dtype))], velocity=velocity, decay=0.9, momentum=0.9)
        return [torch.tensor(kernels.products(weights, [weights, velocity])), *weights, *velocity]

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
