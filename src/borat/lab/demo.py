"""The demonstration: what happens to four methods when the learning rate is a hundred times too large."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor, nn

from borat.constraints import L2Ball
from borat.optimizer import ALIG, BORAT

LEARNING_RATES = (0.1, 10.0)
MANY_LEARNING_RATES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
RADIUS = 16.0
MOMENTUM = 0.9
BATCH_SIZE = 64

STYLES = (("#777777", "o"), ("#d55e00", "s"), ("#0072b2", "^"), ("#009e73", "D"))
"""Colours that colour-blind readers can tell apart, and markers."""

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


def run(epochs: int = 10, rates: Sequence[float] = LEARNING_RATES, seeds: int = 1) -> Iterator[Result]:
    """All methods at all learning rates, one after the other."""
    data = Digits.load()
    for method, lr, seed in product(METHODS, rates, range(seeds)):
        yield train(method, lr, data, epochs, seed)


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw the accuracy over the learning rate: the mean of the seeds, and their range as a band."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for method, (colour, marker) in zip(METHODS, STYLES, strict=True):
        rates = sorted({r.lr for r in results if r.method == method})
        by_rate = [[100 * r.test_accuracy for r in results if (r.method, r.lr) == (method, lr)] for lr in rates]
        means = [sum(values) / len(values) for values in by_rate]
        axes.plot(rates, means, color=colour, marker=marker, label=method)
        axes.fill_between(rates, [min(v) for v in by_rate], [max(v) for v in by_rate], color=colour, alpha=0.15, lw=0)
    axes.set(xscale="log", ylim=(0, 102), xlabel="learning rate", ylabel="test accuracy (%)")
    axes.set_title("scikit-learn's digits, 10 epochs", loc="left")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left", frameon=False)
    figure.savefig(path, dpi=150)
