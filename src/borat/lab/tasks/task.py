"""The interface of tasks, base classes that need only data, a model and a loss, and shared helpers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class TrainingTask(ABC):
    """Base class of tasks: a kind of training with its own model, loss and score.

    The constructor takes no arguments and loads or generates the data, the same for every seed. All other randomness
    comes from PyTorch's global generator, which :func:`borat.lab.tasks.run` seeds. A task with one network implements
    :meth:`build`, :meth:`batches`, :meth:`loss` and :meth:`score`. A task with several networks, each with its own
    optimizer, implements :meth:`networks` and :meth:`losses` instead of :meth:`loss`.
    """

    steps: ClassVar[int] = 1000
    """Number of batches in a full run."""
    metric: ClassVar[str] = "loss"
    """Name of the score."""
    lower_is_better: ClassVar[bool] = True
    """True if a smaller score is better."""

    @abstractmethod
    def build(self) -> nn.Module:
        """Return a newly initialised model."""

    @abstractmethod
    def batches(self, model: nn.Module) -> Iterator[Any]:
        """Yield training batches indefinitely.

        ``model`` is the model in training, for tasks that collect their data with it.
        """

    @abstractmethod
    def score(self, model: nn.Module, split: str) -> float:
        """Return the score of a trained model on ``"validation"`` or ``"test"``: a positive number.

        It is called without gradients, with the model in evaluation mode. Its random numbers are the same in every run
        and differ between the splits.
        """

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of a batch."""
        raise NotImplementedError(f"{type(self).__name__} must implement loss, or networks and losses")

    def networks(self, model: nn.Module) -> dict[str, nn.Module]:
        """Return the parts of the model, by name; each has its own optimizer."""
        return {"model": model}

    def losses(self, model: nn.Module, batch: Any) -> Iterator[tuple[str, Tensor]]:
        """Yield a network's name and its loss, once for each network.

        The network is updated before the next loss is computed.
        """
        yield "model", self.loss(model, batch)


class DataTask(TrainingTask):
    """A task on a fixed data set. The constructor sets :attr:`splits`; the score is the loss on a whole split."""

    batch_size: ClassVar[int] = 64
    repeats: ClassVar[int] = 1
    """Number of evaluations that the score averages; more than one if the loss is random."""
    splits: dict[str, tuple[Tensor, ...]]
    """Tensors of ``"train"``, ``"validation"`` and ``"test"``; each row is an example."""

    def batches(self, model: nn.Module) -> Iterator[Any]:
        return minibatches(self.batch_size, *self.splits["train"])

    def score(self, model: nn.Module, split: str) -> float:
        return sum(self.loss(model, self.splits[split]).item() for _ in range(self.repeats)) / self.repeats


class SampledTask(TrainingTask):
    """A task that draws new examples for every batch. The score is the loss of a large batch."""

    batch_size: ClassVar[int] = 64
    score_size: ClassVar[int] = 2000
    """Number of examples to draw for the score."""

    @abstractmethod
    def draw(self, count: int) -> Any:
        """Return a batch of examples."""

    def batches(self, model: nn.Module) -> Iterator[Any]:
        while True:
            yield self.draw(self.batch_size)

    def score(self, model: nn.Module, split: str) -> float:
        return self.loss(model, self.draw(self.score_size)).item()


def minibatches(size: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield shuffled batches indefinitely, dropping the incomplete batch at the end of each pass.

    >>> batch, labels = next(minibatches(2, torch.zeros(5, 3), torch.zeros(5)))
    >>> batch.shape, labels.shape
    (torch.Size([2, 3]), torch.Size([2]))
    """
    count = len(tensors[0])
    size = min(size, count)
    while True:
        for chosen in torch.split(torch.randperm(count)[: count - count % size], size):
            yield tuple(tensor[chosen] for tensor in tensors)


def mlp(*widths: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return a perceptron with layers of the given widths, starting with that of the input.

    >>> [type(layer).__name__ for layer in mlp(4, 8, 1)]
    ['Linear', 'ReLU', 'Linear']
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])
