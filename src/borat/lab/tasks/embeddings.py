"""Embeddings of handwritten digits: by contrast with a batch, and by triplets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, triplet_margin_loss

from borat.lab.tasks.common import digits, minibatches, mlp
from borat.lab.tasks.task import TrainingTask

TEMPERATURE = 0.1
SHIFTS = (-1, 0, 1)


def distort(images: Tensor) -> Tensor:
    """Return images moved by up to a pixel, with noise and a few pixels missing."""
    rows, columns = (SHIFTS[int(torch.randint(3, ()))] for _ in range(2))
    moved = images.view(-1, 8, 8).roll((rows, columns), dims=(1, 2)).reshape(images.shape)
    return (moved + 0.2 * torch.randn_like(moved)) * (torch.rand_like(moved) > 0.2)


class Contrastive(TrainingTask):
    """Tell the second view of an image from those of other images: InfoNCE, as in SimCLR (Chen et al., 2020)."""

    steps = 2000
    metric = "InfoNCE in nats"

    def build(self) -> nn.Module:
        return mlp(64, 128, 128, 32)

    def batches(self, model: nn.Module) -> Iterator[Any]:
        return minibatches(100, *digits("train"))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        one, other = (normalize(model(distort(batch[0]))) for _ in range(2))
        likeness, same = one @ other.T / TEMPERATURE, torch.arange(len(one))
        return 0.5 * (cross_entropy(likeness, same) + cross_entropy(likeness.T, same))

    def score(self, model: nn.Module, split: str) -> float:
        parts = digits(split)[0].chunk(3)
        return sum(self.loss(model, (part,)).item() for part in parts for _ in range(10)) / (10 * len(parts))


class Triplet(TrainingTask):
    """Embed digits so that those of a class are nearer to each other than to others (Schroff et al., 2015)."""

    steps = 1500
    metric = "wrong triplets in %"

    def build(self) -> nn.Module:
        return mlp(64, 64, 64, 8)

    def batches(self, model: nn.Module) -> Iterator[Any]:
        while True:
            yield self._triplets("train", 64)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        anchor, same, other = (model(images) for images in batch)
        return triplet_margin_loss(anchor, same, other, margin=1.0)

    def score(self, model: nn.Module, split: str) -> float:
        anchor, same, other = (model(images) for images in self._triplets(split, 20_000))
        wrong = (anchor - same).norm(dim=1) >= (anchor - other).norm(dim=1)
        return float(100.0 * wrong.float().mean())

    @staticmethod
    def _triplets(split: str, count: int) -> tuple[Tensor, ...]:
        """Draw anchors, for each another image of its class, and one of another class."""
        images, labels = digits(split)
        anchor = torch.randint(len(images), (count,))
        same_class = labels[anchor][:, None] == labels
        same = (torch.rand(count, len(images)) * same_class).argmax(1)
        other = (torch.rand(count, len(images)) * ~same_class).argmax(1)
        return images[anchor] + 0.1 * torch.randn(count, 64), images[same], images[other]
