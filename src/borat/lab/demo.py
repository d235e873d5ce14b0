"""The demonstration: what happens to four methods when the learning rate is a hundred times too large."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from borat.constraints import L2Ball
from borat.optimizer import ALIG, BORAT

LEARNING_RATES = (0.1, 10.0)
RADIUS = 16.0
MOMENTUM = 0.9
BATCH_SIZE = 64

Step = Callable[[Tensor], None]
"""Takes the loss of a batch, whose gradients are in place, and moves the model."""


@dataclass(frozen=True)
class Result:
    """The outcome of one training run."""

    method: str
    lr: float
    test_accuracy: float
    train_loss: float


@dataclass(frozen=True)
class Digits:
    """scikit-learn's digits, standardised, with every fifth image held out."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @classmethod
    def load(cls) -> Digits:
        images, labels = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
        held_out = torch.arange(len(labels)) % 5 == 0
        images = images.float()
        images = (images - images[~held_out].mean()) / images[~held_out].std()
        return cls((images[~held_out], labels[~held_out]), (images[held_out], labels[held_out]))


def make_model() -> nn.Sequential:
    """Two hidden layers of 128 units with batch normalisation."""
    return nn.Sequential(
        *(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU()),
        *(nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU()),
        nn.Linear(128, 10),
    )


def sgd(model: nn.Module, lr: float) -> Step:
    """PyTorch's SGD with Nesterov momentum, projected onto the same ball as the others."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=MOMENTUM, nesterov=True)
    project = L2Ball(RADIUS)

    def step(loss: Tensor) -> None:
        optimizer.step()
        project(model.parameters())

    return step


def bundle(size: int) -> Callable[[nn.Module, float], Step]:
    """BORAT with a bundle of ``size``."""

    def make(model: nn.Module, lr: float) -> Step:
        optimizer: BORAT
        if size == 2:
            optimizer = ALIG(model.parameters(), lr=lr, momentum=MOMENTUM, constraint=L2Ball(RADIUS))
        else:
            optimizer = BORAT(model.parameters(), lr, size, momentum=MOMENTUM, constraint=L2Ball(RADIUS))
        return lambda loss: optimizer.step(loss=loss)

    return make


METHODS = {"SGD": sgd, "ALI-G": bundle(2), "BORAT3": bundle(3), "BORAT5": bundle(5)}


def train(method: str, lr: float, data: Digits, epochs: int, seed: int = 0) -> Result:
    """Train on the digits; all methods see the same batches."""
    torch.manual_seed(seed)
    model = make_model()
    step = METHODS[method](model, lr)
    criterion = nn.CrossEntropyLoss()
    images, labels = data.train
    loss = torch.tensor(float("nan"))
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(labels)), BATCH_SIZE):
            model.zero_grad()
            loss = criterion(model(images[batch]), labels[batch])
            loss.backward()
            step(loss)
    return Result(method, lr, accuracy(model, *data.test), loss.item())


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of correct answers."""
    model.eval()
    return float((model(images).argmax(1) == labels).float().mean())


def run(epochs: int = 10) -> Iterator[Result]:
    """All methods at all learning rates, one after the other."""
    data = Digits.load()
    for method, lr in product(METHODS, LEARNING_RATES):
        yield train(method, lr, data, epochs)
