"""Autoencoders on handwritten digits: a plain one, and a variational one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from borat.lab.tasks.common import digits, minibatches, mlp
from borat.lab.tasks.task import TrainingTask


class Autoencoder(TrainingTask):
    """Reconstruct digits from eight numbers."""

    steps = 2000
    metric = "squared error per pixel"

    def build(self) -> nn.Module:
        return nn.Sequential(mlp(64, 128, 64, 8), mlp(8, 64, 128, 64))

    def batches(self, model: nn.Module) -> Iterator[Any]:
        return minibatches(64, *digits("train"))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        images, _ = batch
        return mse_loss(model(images), images)

    def score(self, model: nn.Module, split: str) -> float:
        return self.loss(model, digits(split)).item()


class VariationalNetwork(nn.Module):
    """An encoder to the mean and log-variance of a code, and a decoder to the logits of pixels."""

    def __init__(self, code: int = 8) -> None:
        super().__init__()
        self.encoder = mlp(64, 128, 2 * code)
        self.decoder = mlp(code, 128, 64)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(code), mean, log_variance


class VAE(TrainingTask):
    """Maximise the evidence lower bound of a variational autoencoder (Kingma and Welling, 2014)."""

    steps = 2000
    metric = "negative ELBO in nats"

    def build(self) -> nn.Module:
        return VariationalNetwork()

    def batches(self, model: nn.Module) -> Iterator[Any]:
        return minibatches(64, *digits("train"))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        images, _ = batch
        logits, mean, log_variance = model(images)
        error = binary_cross_entropy_with_logits(logits, images, reduction="sum")
        divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1.0).sum()
        loss: Tensor = (error + divergence) / len(images)
        return loss

    def score(self, model: nn.Module, split: str) -> float:
        return sum(self.loss(model, digits(split)).item() for _ in range(8)) / 8
