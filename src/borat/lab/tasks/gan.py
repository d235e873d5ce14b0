"""A generative adversarial network: two networks, an optimizer each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from borat.lab.tasks.common import mlp
from borat.lab.tasks.task import TrainingTask

MODES, LATENT = 8, 4


class AdversarialPair(nn.Module):
    """A generator of points in the plane, and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = mlp(LATENT, 64, 64, 2)
        self.discriminator = mlp(2, 64, 64, 1, activation=lambda: nn.LeakyReLU(0.2))

    def sample(self, count: int) -> Tensor:
        """Draw points."""
        points: Tensor = self.generator(torch.randn(count, LATENT))
        return points


class GAN(TrainingTask):
    """Learn eight Gaussians on a ring with the non-saturating loss (Goodfellow et al., 2014)."""

    steps = 3000
    metric = "energy distance"

    def build(self) -> nn.Module:
        return AdversarialPair()

    def networks(self, model: nn.Module) -> dict[str, nn.Module]:
        assert isinstance(model, AdversarialPair)
        return {"discriminator": model.discriminator, "generator": model.generator}

    def batches(self, model: nn.Module) -> Iterator[Any]:
        while True:
            yield self._draw(128)

    def losses(self, model: nn.Module, batch: Any) -> Iterator[tuple[str, Tensor]]:
        assert isinstance(model, AdversarialPair)
        fake = model.sample(len(batch))
        real_points = batch.clone().requires_grad_()
        real = model.discriminator(real_points)
        (slope,) = torch.autograd.grad(real.sum(), real_points, create_graph=True)
        penalty = 0.2 * slope.square().sum(1).mean()
        yield "discriminator", (softplus(-real) + softplus(model.discriminator(fake.detach()))).mean() + penalty
        yield "generator", softplus(-model.discriminator(fake)).mean()

    def score(self, model: nn.Module, split: str) -> float:
        assert isinstance(model, AdversarialPair)
        real, fake = self._draw(2000), model.sample(2000)
        within = torch.cdist(real, real).mean() + torch.cdist(fake, fake).mean()
        return math.sqrt(max((2.0 * torch.cdist(real, fake).mean() - within).item(), 0.0))

    @staticmethod
    def _draw(count: int) -> Tensor:
        angles = 2.0 * math.pi * torch.randint(MODES, (count, 1)) / MODES
        return torch.cat([angles.cos(), angles.sin()], dim=1) + 0.05 * torch.randn(count, 2)
