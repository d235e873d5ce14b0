"""Small training problems for several tests."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from borat import BORAT
from borat._numbers import dual
from borat._vectors import cpu


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def vector(model: nn.Module) -> Tensor:
    """Return a copy of all parameters as one vector."""
    return parameters_to_vector(model.parameters()).detach().clone()


def batches(count: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(8, 5, generator=generator, dtype=torch.float64).to(dtype),
            torch.randint(3, (8,), generator=generator),
        )
        for _ in range(count)
    ]


def train(
    model: nn.Module,
    optimizer: BORAT,
    data: list[tuple[Tensor, Tensor]],
    loss_of: Callable[[Tensor], Tensor] = lambda loss: loss,
) -> list[Tensor]:
    """Take one step on each batch; return the parameters after each."""
    points = []
    for x, y in data:
        optimizer.zero_grad()
        loss = loss_of(nn.functional.cross_entropy(model(x), y))
        loss.backward()
        optimizer.step(loss=loss)
        points.append(vector(model))
    return points


def as_functions(model, data):
    """Return the batches as functions of the flat parameters, for the literal twin."""
    model = copy.deepcopy(model)

    def function(x, y):
        def evaluate(w):
            vector_to_parameters(torch.from_numpy(w), model.parameters())
            model.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss.item(), parameters_to_vector([p.grad for p in model.parameters()]).numpy()

        return evaluate

    return iter([function(x, y) for x, y in data])


def least_squares(dtype: torch.dtype = torch.float64) -> tuple[nn.Linear, Callable[[int], Tensor]]:
    """Return a linear regression that can be solved exactly, and a function for its loss on batch ``i``."""
    model = nn.Linear(40, 1, bias=False).to(dtype)
    x = torch.randn(20, 40, dtype=dtype)
    y = x @ torch.randn(40, 1, dtype=dtype)
    return model, lambda i: (model(x[4 * (i % 5) : 4 * (i % 5) + 4]) - y[4 * (i % 5) : 4 * (i % 5) + 4]).square().mean()


BACKENDS = ("kernels", "torch")
"""The two implementations of the vector operations."""


def use_backend(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Select one of the implementations on the CPU; without kernels, NumPy solves the dual as well."""
    if backend == "kernels" and cpu.library is None:
        pytest.skip("the kernels were not compiled")
    if backend == "torch":
        monkeypatch.setattr(cpu, "library", None)
        monkeypatch.setattr(dual, "library", None)
