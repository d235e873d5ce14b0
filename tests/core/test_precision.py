"""Mixed precision, gradient accumulation, batch normalisation."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from borat import BORAT
from borat.batchnorm import frozen_statistics
from problems import batches, network


def fit(model: nn.Module, autocast: bool, dtype: torch.dtype, steps: int = 200) -> float:
    """Return the last loss on a problem that the network can solve."""
    torch.manual_seed(0)
    x = torch.randn(64, 5).to(dtype)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    optimizer = BORAT(model.parameters(), 0.5, 3)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step(loss=loss)
    assert optimizer.dropped_batches == 0
    return loss.item()


def test_bfloat16_autocast_trains_like_float32():
    model = network(torch.float32)
    plain = fit(copy.deepcopy(model), False, torch.float32)
    mixed = fit(model, True, torch.float32)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert mixed < max(3 * plain, 0.05)


def test_pure_bfloat16_trains():
    model = network(torch.bfloat16)
    assert fit(model, False, torch.bfloat16) < 0.1
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())


@pytest.mark.parametrize("bundle_size", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_float32_up_to_rounding(bundle_size, dtype):
    """Also for tensors that are long enough for vector instructions on 16 or 32 elements."""
    params = [nn.Parameter(torch.ones(100, dtype=d)) for d in (dtype, torch.float32)]
    for p in params:
        optimizer = BORAT([p], 0.02, bundle_size)
        generator = torch.Generator().manual_seed(0)
        for _ in range(3 * bundle_size):
            p.grad = torch.randn(100, generator=generator).to(dtype).to(p.dtype)
            optimizer.step(loss=1.0)
    torch.testing.assert_close(params[0].float(), params[1].detach(), rtol=0, atol=0.03)


def test_large_float16_gradients_with_steps_of_different_sizes():
    p = nn.Parameter(torch.zeros(2, dtype=torch.float16))
    optimizer = BORAT([p], 1e-4, 3)
    for gradient, loss in (([100.0, 0.0], 1e-2), ([0.0, 2000.0], 160.0)):
        p.grad = torch.tensor(gradient, dtype=torch.float16)
        optimizer.step(loss=loss)
    alpha = optimizer.last_step.alpha
    expected = -1.9e-4 * torch.tensor([100.0 * alpha[0], 2000.0 * alpha[1]])  # the step, and 0.9 of it as momentum
    torch.testing.assert_close(p.detach().float(), expected.float(), rtol=1e-2, atol=1e-6)


class Normalised(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_move_once_for_each_update(momentum):
    model = Normalised().double()
    model[1].momentum = momentum
    optimizer = BORAT(model.parameters(), 0.5, 4, same_batch=True)
    reference = copy.deepcopy(model)
    for x, y in batches(3):
        with torch.no_grad():
            reference.load_state_dict(
                {
                    **model.state_dict(),
                    **{k: v for k, v in reference.state_dict().items() if "running" in k or "num" in k},
                }
            )
            reference(x)  # the statistics after one forward pass at the centre
        evaluations = 0

        def closure(x=x, y=y):
            nonlocal evaluations
            evaluations += 1
            optimizer.zero_grad()
            with frozen_statistics(model, optimizer.bundle_position > 0):
                loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        assert evaluations == 3
        torch.testing.assert_close(model[1].running_mean, reference[1].running_mean)
        torch.testing.assert_close(model[1].running_var, reference[1].running_var)
        assert model[1].num_batches_tracked == reference[1].num_batches_tracked


def test_frozen_statistics_normalise_by_the_batch_and_recover_from_errors():
    model = Normalised()
    x = torch.randn(16, 5)
    expected, before = model(x), copy.deepcopy(model[1].state_dict())
    with frozen_statistics(model):
        torch.testing.assert_close(model(x), expected)
    with pytest.raises(ZeroDivisionError), frozen_statistics(model):
        1 / 0  # noqa: B018
    model(x)
    assert model[1].num_batches_tracked == before["num_batches_tracked"] + 1


def test_layers_without_running_statistics_stay_so():
    layer = nn.BatchNorm1d(3, track_running_stats=False)
    with frozen_statistics(layer):
        layer(torch.randn(4, 3))
    assert not layer.track_running_stats


def test_layers_in_evaluation_are_left_alone():
    layer = nn.InstanceNorm1d(3, track_running_stats=True).eval()
    x = torch.randn(4, 3, 6)
    expected = layer(x)
    with frozen_statistics(layer):
        torch.testing.assert_close(layer(x), expected)
    assert layer.num_batches_tracked == 0
