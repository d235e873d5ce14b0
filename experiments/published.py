"""Test problems with published results: DeepOBS's deep quadratic and scikit-learn's perceptron on digits.

The experiments beside this file name them as ``published.py:QuadraticDeep``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from borat.lab.tasks.task import DataTask, TrainingTask, mlp


class QuadraticDeep(DataTask):
    """DeepOBS's ``quadratic_deep`` (Schneider et al., 2019): a noisy quadratic with a spectrum like a deep network's.

    The loss is the mean of (theta - x)' H (theta - x) / 2 over normal x, from theta = 1. Of the 100 eigenvalues of H,
    90 are in (0, 1) and 10 in (30, 60). The random streams are DeepOBS's, so that H, the training data and the test
    data are the same. As there, a run shuffles the data once and repeats the same seven batches in every epoch, and
    neither training nor the test uses the incomplete batch. DeepOBS has no validation data; here they are one more
    draw.
    """

    steps = 700
    metric = "test loss"
    batch_size = 128
    size, dimension, noise = 1000, 100, 0.6

    def __init__(self) -> None:
        stream = np.random.RandomState(42)
        eigenvalues = np.concatenate([stream.uniform(0.0, 1.0, 90), stream.uniform(30.0, 60.0, 10)])
        basis = draw_rotation(self.dimension, stream)
        self.hessian = torch.from_numpy(basis.T * eigenvalues @ basis).float()
        whole = self.size // self.batch_size * self.batch_size
        counts = {"train": (42, self.size), "test": (43, whole), "validation": (44, whole)}
        self.splits = {name: (self._draw(seed)[:count],) for name, (seed, count) in counts.items()}

    def _draw(self, seed: int) -> Tensor:
        shape = (self.size, self.dimension)
        return torch.from_numpy(np.random.RandomState(seed).normal(0.0, self.noise, shape)).float()

    def batches(self, model: nn.Module) -> Iterator[Any]:
        return cycle(islice(super().batches(model), self.size // self.batch_size))

    def build(self) -> nn.Module:
        return nn.ParameterDict({"theta": torch.ones(self.dimension)})

    def loss(self, model: Any, batch: Any) -> Tensor:
        difference: Tensor = model["theta"] - batch[0]
        return 0.5 * (difference @ self.hessian * difference).sum(1).mean()


def draw_rotation(size: int, stream: np.random.RandomState) -> np.ndarray:
    """Draw an orthogonal matrix by the subgroup algorithm (Diaconis and Shahshahani, 1987).

    >>> basis = draw_rotation(5, np.random.RandomState(0))
    >>> bool(np.allclose(basis @ basis.T, np.eye(5)))
    True
    """
    angle = 2.0 * math.pi * stream.uniform()
    rotation = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    for length in range(3, size + 1):
        image = stream.normal(size=length)
        mirror = np.eye(length)[0] - image / np.linalg.norm(image)
        mirror /= np.linalg.norm(mirror)
        larger = np.eye(length)
        larger[1:, 1:] = rotation
        rotation = larger - 2.0 * np.outer(mirror, mirror @ larger)
    return rotation


class DigitsErrors(TrainingTask):
    """The part on digits of scikit-learn's example "Compare Stochastic learning strategies for MLPClassifier".

    A perceptron with 100 hidden units on all 1,797 digits: 15 epochs in batches of 200, the last one smaller. Both
    splits are the training data. A small L2 term is divided by the batch size, as in scikit-learn.
    """

    steps = 15 * 9
    metric = "training examples that are wrong, in %"
    batch_size, penalty = 200, 1e-4

    def __init__(self) -> None:
        pixels, digits = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
        low, high = pixels.amin(0), pixels.amax(0)
        self.x, self.y = ((pixels - low) / (high - low).clamp(min=1.0)).float(), digits.long()

    def build(self) -> nn.Module:
        model = mlp(64, 100, 10)
        for layer in (layer for layer in model if isinstance(layer, nn.Linear)):
            bound = math.sqrt(6.0 / (layer.in_features + layer.out_features))  # biases, too
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -bound, bound)
        return model

    def batches(self, model: nn.Module) -> Iterator[Any]:
        while True:
            for chosen in torch.split(torch.randperm(len(self.x)), self.batch_size):
                yield self.x[chosen], self.y[chosen]

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        weights = (p.square().sum() for p in model.parameters() if p.ndim == 2)
        return cross_entropy(model(x), y) + 0.5 * self.penalty / len(y) * sum(weights)

    def score(self, model: nn.Module, split: str) -> float:
        return 100.0 * float((model(self.x).argmax(1) != self.y).float().mean())


class DigitsLoss(DigitsErrors):
    """The same with the loss on all training examples at the end."""

    metric = "training loss"

    def score(self, model: nn.Module, split: str) -> float:
        return self.loss(model, (self.x, self.y)).item()
