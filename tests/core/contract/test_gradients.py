"""Gradients of all kinds: missing, sparse, complex, in any layout and dtype, infinite or very large."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import Parameter
from torch.testing import assert_close

from borat import ALIG, BORAT, FreeBORAT
from flavours import over_flavours, over_options
from problems import batches, network, train, vector
from regression import assert_same, fresh, run, take, values

LAYOUTS = {
    "complex": (torch.view_as_complex, torch.view_as_real),
    "strided": (lambda x: torch.stack((x, x), dim=-1)[..., 0], torch.clone),
    "transposed": (lambda x: x.mT.contiguous().mT if x.dim() == 2 else x, torch.clone),
}


@over_options()
@pytest.mark.parametrize("gradient", [None, torch.zeros])
def test_step_without_gradients_does_nothing(cls, options, gradient):
    params = fresh()
    opt = cls(params, **options)
    start = values(params)
    for p in params:
        p.grad = gradient and gradient(p.shape)
    for loss in (1, 2.0, torch.tensor(3.0), 4, 5.0):
        assert opt.step(loss=loss) is loss
        assert gradient or opt.step(lambda loss=loss: loss) is loss
        assert_same(params, start)
        assert gradient or (opt.bundle_position == 0 and opt.last_step is None)
    assert bool(opt.state_dict()["state"]) == bool(gradient)


@over_flavours
def test_no_gradients_within_a_bundle_is_no_step(make):
    model = network()
    optimizer = make(model.parameters())
    train(model, optimizer, batches(1))
    optimizer.zero_grad()
    before = vector(model)
    optimizer.step(loss=torch.tensor(1.0))
    assert torch.equal(vector(model), before)
    assert optimizer.bundle_position == 1 % make.calls


@over_flavours
def test_parameters_without_gradients_stay_and_have_no_state(make):
    model = network()
    model[0].weight.requires_grad_(False)
    frozen = model[0].weight.clone()
    optimizer = make(model.parameters(), 1.0)
    train(model, optimizer, batches(2 * make.size))
    assert torch.equal(model[0].weight, frozen)
    assert model[0].weight not in optimizer.state


@pytest.mark.parametrize("bundle_size", [3, 5])
@pytest.mark.parametrize("first", [True, False])
def test_a_gradient_missing_in_some_pieces_is_zero(bundle_size, first):
    """In a branch that only some batches use, None counts as zero."""

    def run(explicit_zero):
        torch.manual_seed(0)
        a, b = nn.Parameter(torch.randn(4).double()), nn.Parameter(torch.randn(3).double())
        optimizer = BORAT([a, b], 0.5, bundle_size)
        for i in range(4 * (bundle_size - 1)):
            optimizer.zero_grad()
            uses_b = (i % 2 == 0) == first
            loss = (a - i).square().sum() + (b + i).square().sum() * uses_b
            loss.backward()
            if not uses_b and not explicit_zero:
                b.grad = None
            optimizer.step(loss=loss)
        return torch.cat((a, b)).detach()

    torch.testing.assert_close(run(True), run(False), rtol=0, atol=1e-12)


@over_flavours
def test_sparse_gradients_equal_dense_ones(make):
    def run(sparse):
        torch.manual_seed(0)
        embedding = nn.Embedding(10, 4, sparse=sparse).double()
        optimizer = make(embedding.parameters(), 0.5)
        for i in range(12):
            optimizer.zero_grad()
            loss = (embedding(torch.tensor([i % 10, 3, 3])) - 1.0).square().mean()
            loss.backward()
            optimizer.step(loss=loss)
        return embedding.weight.detach()

    torch.testing.assert_close(run(True), run(False), rtol=0, atol=1e-14)


@over_options()
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(cls, options, layout):
    lay_out, view = LAYOUTS[layout]
    params = [Parameter(lay_out(x)) for x in values(fresh())]
    strides = [p.stride() for p in params]
    points = run(cls, options, params, lambda params: [view(p) for p in params])
    assert_close(points, run(cls, options, fresh()), rtol=1e-5, atol=1e-5)
    assert [p.stride() for p in params] == strides


@over_flavours
def test_gradients_in_another_layout_than_their_parameter(make):

    def run(layout):
        torch.manual_seed(0)
        weight = nn.Parameter(layout(torch.randn(4, 3, 5, 5).double()))
        optimizer = make([weight], 0.5)
        for i in range(2 * make.size):
            gradient = torch.randn(4, 3, 5, 5).double()
            weight.grad = gradient if i % 2 else layout(gradient)
            optimizer.step(loss=torch.tensor(1.0))
        return weight.detach()

    expected = run(lambda w: w)
    padded = run(lambda w: torch.cat((w, w), dim=3)[..., :5])
    torch.testing.assert_close(run(lambda w: w.to(memory_format=torch.channels_last)), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        run(lambda w: w.transpose(0, 3).contiguous().transpose(0, 3)), expected, rtol=0, atol=1e-12
    )
    torch.testing.assert_close(padded, expected, rtol=0, atol=1e-12)


def test_conjugated_gradients():
    c = torch.randn(3, dtype=torch.complex128)
    z = nn.Parameter(torch.ones(3, dtype=torch.complex128))
    (z.conj() * c).real.sum().backward()
    assert z.grad.is_conj()
    optimizer = ALIG([z], lr=0.1, momentum=0.0)
    optimizer.step(loss=1e9)
    torch.testing.assert_close(z.detach(), 1.0 - 0.1 * z.grad.resolve_conj())


@over_options()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mixed_dtypes(cls, options, dtype):
    params = [fresh(torch.float64)[0], fresh(dtype)[1]]
    opt = cls(params, **options)
    points, expected = take(opt, params, range(8)), run(cls, options, fresh(torch.float64))[:16]
    tolerance = 16.0 * torch.finfo(dtype).eps
    assert_close([x.double() for x in points], expected, rtol=tolerance, atol=tolerance)
    for p in params:
        kept = {key: x.dtype for key, x in opt.state[p].items() if isinstance(x, torch.Tensor)}
        assert kept.pop("rms", torch.float32) == torch.promote_types(p.dtype, torch.float32) or cls is not FreeBORAT
        assert set(kept.values()) <= {p.dtype}


def test_bfloat16_gram_is_computed_in_float32():
    w = nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))
    optimizer = ALIG([w], lr=1e9, momentum=0.0)
    w.grad = torch.full((1000,), 1.0078125, dtype=torch.bfloat16)
    optimizer.step(loss=torch.tensor(1.0))
    assert optimizer.last_step.step_norm == pytest.approx(1.0 / math.sqrt(1000 * 1.0078125**2), rel=1e-6)


@over_flavours
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_model_cast_in_the_middle_of_training(make, dtype):
    model = network(torch.float32)
    optimizer = make(model.parameters(), 0.1)
    train(model, optimizer, batches(make.size + 1, torch.float32))
    model.to(dtype)
    train(model, optimizer, batches(make.size + 1, dtype))
    assert vector(model).isfinite().all()
    for p in model.parameters():
        for key, tensor in optimizer.state[p].items():
            precise = torch.promote_types(dtype, torch.float32)
            assert not isinstance(tensor, torch.Tensor) or tensor.dtype == (precise if key == "rms" else dtype)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
@over_flavours
def test_non_finite_batches_leave_no_trace(bad, where, make):
    data = batches(2 * make.size)
    model = network()
    clean = copy.deepcopy(model)
    expected = train(clean, make(clean.parameters(), 1.0), data)
    optimizer = make(model.parameters(), 1.0)
    with pytest.warns(UserWarning, match="not finite") as record:
        for i, batch in enumerate(data):
            x, y = batch
            before = vector(model)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            if where == "gradient":
                next(model.parameters()).grad.view(-1)[3] = bad
            else:
                loss = loss * bad
            assert optimizer.step(loss=loss) is loss
            assert torch.equal(vector(model), before)
            assert optimizer.dropped_batches == i + 1
            assert torch.equal(train(model, optimizer, [batch])[-1], expected[i])
    assert len(record) == 1, "warned of once"


@pytest.mark.parametrize("bundle_size", [3, 4, 5])
def test_a_dropped_batch_does_not_bring_a_parameter_into_the_bundle(bundle_size):
    a, b = nn.Parameter(torch.zeros(2).double()), nn.Parameter(torch.ones(2).double())
    optimizer = BORAT([a, b], 100.0, bundle_size, momentum=0.0)

    def step(with_b, loss=1.0, i=0.0):
        a.grad = torch.tensor([1.0, i], dtype=torch.float64)
        b.grad = torch.tensor([1.0, 2.0], dtype=torch.float64) if with_b else None
        optimizer.step(loss=loss)

    for _ in range(bundle_size - 1):
        step(True)
    before = b.detach().clone()
    with pytest.warns(UserWarning, match="not finite"):
        step(True, math.nan)
    for i in range(bundle_size - 1):
        step(False, i=float(i))
    assert torch.equal(b, before)


@over_flavours
def test_enormous_gradients(make):
    w = nn.Parameter(torch.ones(2).double())
    optimizer = make([w], 0.1)
    for i in range(4 * make.size):
        w.grad = torch.full((2,), 1e100, dtype=torch.float64) * (1 + i)
        optimizer.step(loss=1.0)
    assert w.isfinite().all()
    assert optimizer.dropped_batches == 0


def test_a_gradient_too_long_for_lr_is_dropped():
    w = nn.Parameter(torch.ones(2).double())
    optimizer = BORAT([w], 1e12, 3)
    w.grad = torch.full((2,), 1e150, dtype=torch.float64)
    with pytest.warns(UserWarning, match="a gradient is not finite or too large"):
        optimizer.step(loss=1.0)
    assert w.tolist() == [1.0, 1.0]


def test_a_single_linear_piece_has_no_bound_to_fall_below():
    p = torch.nn.Parameter(torch.ones(2))
    optimizer = BORAT([p], 0.1, 1, momentum=0.0)
    p.grad = torch.ones(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step(loss=-3.0)
    torch.testing.assert_close(p.detach(), torch.full((2,), 0.9))


@pytest.mark.parametrize("bundle_size", [2, 3, 5])
def test_a_loss_below_the_bound_warns_once_and_never_climbs(bundle_size):
    w = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = BORAT([w], 1.0, bundle_size, lower_bound=100.0)
    with pytest.warns(UserWarning, match="below lower_bound=100") as record:
        for _ in range(2 * (bundle_size - 1)):
            optimizer.zero_grad()
            loss = w.square().sum()
            loss.backward()
            optimizer.step(loss=loss)
    assert len(record) == 1
    assert w.tolist() == [1.0, -2.0]
    assert optimizer.last_step.kind in ("ZERO", "B")
