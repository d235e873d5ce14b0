"""Regression on made data: a mean under much noise, and a mean with its variance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gaussian_nll_loss, mse_loss

from borat.lab.tasks.common import generator, minibatches, mlp
from borat.lab.tasks.task import TrainingTask

SPLITS = {"train": 20_000, "validation": 2000, "test": 2000}
"""Examples of each split."""


class NoisyRegression(TrainingTask):
    """Find a smooth function of eight variables under noise as large as the function itself."""

    steps = 3000
    metric = "squared error of the mean"

    def __init__(self) -> None:
        random = generator(1)
        self.inputs = {split: torch.randn(count, 8, generator=random) for split, count in SPLITS.items()}
        truth = self.truth(self.inputs["train"])
        self.targets = truth + truth.std() * torch.randn(truth.shape, generator=random)

    @staticmethod
    def truth(x: Tensor) -> Tensor:
        """Return the function's values."""
        return 2.0 * (x[:, :1] * x[:, 1:2]).sin() + x[:, 2:3] * x[:, 3:4].tanh() + x[:, 4:5].square() - 1.0 + x[:, 5:6]

    def build(self) -> nn.Module:
        return mlp(8, 64, 64, 1)

    def batches(self, model: nn.Module) -> Iterator[Any]:
        return minibatches(64, self.inputs["train"], self.targets)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        return mse_loss(model(inputs), targets)

    def score(self, model: nn.Module, split: str) -> float:
        return mse_loss(model(self.inputs[split]), self.truth(self.inputs[split])).item()


class GaussianLikelihood(TrainingTask):
    """Predict a mean and a variance by maximum likelihood; the loss becomes negative where the noise is small."""

    steps = 4000
    metric = "divergence from the truth in nats"

    def __init__(self) -> None:
        random = generator(2)
        self.inputs = {split: 4.0 * torch.rand(count, 2, generator=random) - 2.0 for split, count in SPLITS.items()}
        mean, deviation = self.truth(self.inputs["train"])
        self.targets = mean + deviation * torch.randn(mean.shape, generator=random)

    @staticmethod
    def truth(x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the standard deviation."""
        return (2.0 * x[:, :1]).sin() * x[:, 1:].cos(), 0.02 + 0.2 * torch.sigmoid(2.0 * x.sum(1, keepdim=True))

    def build(self) -> nn.Module:
        return mlp(2, 64, 64, 2, activation=nn.Tanh)

    def batches(self, model: nn.Module) -> Iterator[Any]:
        return minibatches(64, self.inputs["train"], self.targets)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        mean, log_variance = model(inputs).chunk(2, dim=1)
        return gaussian_nll_loss(mean, targets, log_variance.exp())

    def score(self, model: nn.Module, split: str) -> float:
        (mean, deviation), inputs = self.truth(self.inputs[split]), self.inputs[split]
        guess, log_variance = model(inputs).chunk(2, dim=1)
        ratio = deviation.square() / log_variance.exp()
        divergence = 0.5 * (ratio - ratio.log() - 1.0 + (mean - guess).square() / log_variance.exp())
        return float(divergence.mean())
