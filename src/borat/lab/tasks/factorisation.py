"""Matrix factorisation of made ratings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from borat.lab.tasks.common import generator, minibatches
from borat.lab.tasks.task import TrainingTask

USERS, ITEMS, RANK = 300, 200, 5
SPLITS = {"train": 12_000, "validation": 4000, "test": 4000}
"""Ratings of each split."""


class Factors(nn.Module):
    """A vector and a bias for each user and each item."""

    def __init__(self, rank: int = RANK) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, rank + 1), nn.Embedding(ITEMS, rank + 1)
        for embedding in (self.users, self.items):
            nn.init.normal_(embedding.weight, std=0.1)

    def forward(self, pairs: Tensor) -> Tensor:
        user, item = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        ratings: Tensor = (user[:, 1:] * item[:, 1:]).sum(1) + user[:, 0] + item[:, 0]
        return ratings


class Factorisation(TrainingTask):
    """Complete a matrix of rank five from a fifth of its entries, with noise."""

    steps = 8000
    metric = "squared error of the matrix"

    def __init__(self) -> None:
        random = generator(6)
        matrix = torch.randn(USERS, RANK, generator=random) @ torch.randn(RANK, ITEMS, generator=random) / RANK**0.5
        self.ratings = {}
        places = torch.randperm(USERS * ITEMS, generator=random)[: sum(SPLITS.values())]
        for split, chosen in zip(SPLITS, torch.split(places, list(SPLITS.values())), strict=True):
            pairs = torch.stack([chosen // ITEMS, chosen % ITEMS], dim=1)
            self.ratings[split] = pairs, matrix[pairs[:, 0], pairs[:, 1]]
        pairs, truth = self.ratings["train"]
        self.ratings["train"] = pairs, truth + 0.3 * torch.randn(len(truth), generator=random)

    def build(self) -> nn.Module:
        return Factors()

    def batches(self, model: nn.Module) -> Iterator[Any]:
        return minibatches(256, *self.ratings["train"])

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        pairs, ratings = batch
        return mse_loss(model(pairs), ratings)

    def score(self, model: nn.Module, split: str) -> float:
        return self.loss(model, self.ratings[split]).item()
