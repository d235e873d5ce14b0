"""Learning from another network: distillation, and fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from borat.lab.tasks.common import digits, minibatches, mlp
from borat.lab.tasks.task import TrainingTask

TEMPERATURE = 4.0


def trained(network: nn.Module, images: Tensor, labels: Tensor, steps: int) -> nn.Module:
    """Train a network to classify images, always in the same way."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.002)
    for batch, classes in islice(minibatches(64, images, labels), steps):
        optimizer.zero_grad()
        cross_entropy(network(batch), classes).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return network


class Distillation(TrainingTask):
    """Teach a small network the answers of a large one (Hinton, Vinyals and Dean, 2015)."""

    steps = 1500
    metric = "divergence from the teacher"

    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(4)
            self.teacher = trained(mlp(64, 256, 256, 10), *digits("train"), steps=200).requires_grad_(False)

    def build(self) -> nn.Module:
        return mlp(64, 16, 10)

    def batches(self, model: nn.Module) -> Iterator[Any]:
        return minibatches(64, *digits("train"))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        images = batch[0]
        student, teacher = (log_softmax(network(images) / TEMPERATURE, 1) for network in (model, self.teacher))
        return TEMPERATURE**2 * kl_div(student, teacher, log_target=True, reduction="batchmean")

    def score(self, model: nn.Module, split: str) -> float:
        return self.loss(model, digits(split)).item()


class FineTuning(TrainingTask):
    """Fine-tune a network that knows the digits on a few of them in a mirror, with noise."""

    steps = 1500
    metric = "cross-entropy in nats"
    examples = 400

    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            self.start = trained(mlp(64, 128, 128, 10), *digits("train"), steps=300).state_dict()

    def build(self) -> nn.Module:
        model = mlp(64, 128, 128, 10)
        model.load_state_dict(self.start)
        return model

    def batches(self, model: nn.Module) -> Iterator[Any]:
        images, labels = digits("train")
        return minibatches(40, images[: self.examples], labels[: self.examples])

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        images, labels = batch
        mirrored = images.view(-1, 8, 8).flip(2).flatten(1)
        return cross_entropy(model(mirrored + 0.3 * torch.randn_like(mirrored)), labels)

    def score(self, model: nn.Module, split: str) -> float:
        return sum(self.loss(model, digits(split)).item() for _ in range(10)) / 10
