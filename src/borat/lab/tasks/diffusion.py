"""Denoising diffusion on handwritten digits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from borat.lab.tasks.common import digits, minibatches, mlp
from borat.lab.tasks.task import TrainingTask


class DenoisingNetwork(nn.Module):
    """A perceptron that predicts the noise in an image from the image and the time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", math.pi * 2.0 ** torch.arange(8))
        self.frequencies: Tensor
        self.layers = mlp(64 + 16, 256, 256, 64, activation=nn.SiLU)

    def forward(self, noisy: Tensor, time: Tensor) -> Tensor:
        angles = time * self.frequencies
        noise: Tensor = self.layers(torch.cat([noisy, angles.sin(), angles.cos()], dim=1))
        return noise


class Diffusion(TrainingTask):
    """Predict the noise in noisy digits (Ho, Jain and Abbeel, 2020), with a cosine schedule of the noise."""

    steps = 4000
    metric = "squared error of the noise"

    def build(self) -> nn.Module:
        return DenoisingNetwork()

    def batches(self, model: nn.Module) -> Iterator[Any]:
        return minibatches(128, *digits("train"))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        images = 2.0 * batch[0] - 1.0
        time, noise = torch.rand(len(images), 1), torch.randn_like(images)
        angle = 0.5 * math.pi * (0.02 + 0.96 * time)
        return mse_loss(model(angle.cos() * images + angle.sin() * noise, time), noise)

    def score(self, model: nn.Module, split: str) -> float:
        return sum(self.loss(model, digits(split)).item() for _ in range(16)) / 16
