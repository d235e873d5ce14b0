"""A physics-informed network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from borat.lab.tasks.common import mlp
from borat.lab.tasks.task import TrainingTask


class Physics(TrainingTask):
    """Solve the heat equation with a network (Raissi, Perdikaris and Karniadakis, 2019).

    The equation is u_t = a u_xx for x and t between 0 and 1, with u = sin(pi x) + sin(3 pi x) / 2 at the beginning and
    u = 0 at both ends. The loss is the squared residual at random points, with the conditions as penalties.
    """

    steps = 5000
    metric = "relative error"
    diffusivity = 0.05

    def build(self) -> nn.Module:
        return mlp(2, 32, 32, 1, activation=nn.Tanh)

    def batches(self, model: nn.Module) -> Iterator[Any]:
        while True:
            yield torch.rand(128, 2)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        points = batch.clone().requires_grad_()
        u = model(points)
        (slope,) = torch.autograd.grad(u.sum(), points, create_graph=True)
        (bend,) = torch.autograd.grad(slope[:, 0].sum(), points, create_graph=True)
        residual = slope[:, 1] - self.diffusivity * bend[:, 0]
        ends = torch.stack([(batch[:, 0] > 0.5).float(), batch[:, 1]], dim=1)
        begin = torch.stack([batch[:, 0], torch.zeros(len(batch))], dim=1)
        conditions = model(ends).square().mean() + (model(begin) - self.solution(begin)).square().mean()
        loss: Tensor = residual.square().mean() + 10.0 * conditions
        return loss

    def score(self, model: nn.Module, split: str) -> float:
        points = torch.rand(2000, 2)
        truth = self.solution(points)
        return float((model(points) - truth).norm() / truth.norm())

    def solution(self, points: Tensor) -> Tensor:
        """Return the exact solution."""
        x, t = points[:, :1], points[:, 1:]

        def wave(k: int) -> Tensor:
            return (k * math.pi * x).sin() * (-self.diffusivity * (k * math.pi) ** 2 * t).exp()

        return wave(1) + 0.5 * wave(3)
