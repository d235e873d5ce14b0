"""Segmentation of made images with the Dice loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from borat.lab.tasks.common import generator, minibatches
from borat.lab.tasks.task import TrainingTask

SIZE = 24
SPLITS = {"train": 600, "validation": 200, "test": 200}
"""Images of each split."""


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU())


class SmallUNet(nn.Module):
    """A U-Net (Ronneberger, Fischer and Brox, 2015) of two levels."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep, self.up = _block(1, 8), _block(8, 16), _block(24, 8)
        self.head = nn.Conv2d(8, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.down(images)
        coarse = self.deep(nn.functional.max_pool2d(fine, 2))
        logits: Tensor = self.head(self.up(torch.cat([fine, interpolate(coarse, scale_factor=2.0)], dim=1)))
        return logits


class Segmentation(TrainingTask):
    """Find discs among squares in noisy images, by the soft Dice loss (Milletari, Navab and Ahmadi, 2016)."""

    steps = 1500
    metric = "1 - Dice"

    def __init__(self) -> None:
        random = generator(3)
        self.splits = {split: self._draw(count, random) for split, count in SPLITS.items()}

    @staticmethod
    def _draw(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return images and masks: a disc and a square in each, of the same size and brightness."""
        grid = torch.arange(SIZE)
        centres = torch.randint(5, SIZE - 5, (2, count, 2, 1, 1), generator=random)
        radii = torch.randint(3, 6, (2, count, 1, 1), generator=random)
        down, across = (grid[:, None] - centres[:, :, 0], grid[None, :] - centres[:, :, 1])
        disc = (down[0].square() + across[0].square() <= radii[0].square()).float()
        square = (torch.maximum(down[1].abs(), across[1].abs()) <= 0.8 * radii[1]).float()
        images = torch.maximum(disc, square) + 0.3 * torch.randn(count, SIZE, SIZE, generator=random)
        return images[:, None], disc[:, None]

    def build(self) -> nn.Module:
        return SmallUNet()

    def batches(self, model: nn.Module) -> Iterator[Any]:
        return minibatches(16, *self.splits["train"])

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        images, masks = batch
        return (1.0 - _dice(model(images).sigmoid(), masks)).mean()

    def score(self, model: nn.Module, split: str) -> float:
        images, masks = self.splits[split]
        return 1.0 - _dice((model(images) > 0.0).float(), masks).mean().item()


def _dice(guess: Tensor, masks: Tensor) -> Tensor:
    """Return the Dice coefficient of each image."""
    both, all_of_them = (guess * masks).sum((1, 2, 3)), (guess + masks).sum((1, 2, 3))
    return (2.0 * both + 1.0) / (all_of_them + 1.0)
