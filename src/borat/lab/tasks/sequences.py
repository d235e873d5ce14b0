"""Recurrent networks on synthetic sequences: sequence to sequence, and the adding problem."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, pad

from borat.lab.tasks.task import SampledTask


class EncoderDecoder(nn.Module):
    """A recurrent encoder, and a recurrent decoder that attends to its states."""

    def __init__(self, symbols: int, width: int = 64) -> None:
        super().__init__()
        self.symbols = symbols
        self.embedding = nn.Embedding(symbols + 1, width)
        self.encoder, self.decoder = (nn.GRU(width, width, batch_first=True) for _ in range(2))
        self.query = nn.Linear(width, width)
        self.head = nn.Linear(2 * width, symbols)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of each target symbol, given those before it."""
        memory, state = self.encoder(self.embedding(source))
        begun = pad(target[:, :-1], (1, 0), value=self.symbols)  # the symbol after the others marks the beginning
        states, _ = self.decoder(self.embedding(begun), state)
        weights = (self.query(states) @ memory.transpose(1, 2) / memory.shape[2] ** 0.5).softmax(2)
        return self.head(torch.cat([states, weights @ memory], dim=2))


class SequenceToSequence(SampledTask):
    """Sort eight symbols, a tenth of which were misread, with an encoder and a decoder."""

    steps = 1500
    metric = "cross-entropy per symbol in nats"
    symbols, length, misread = 10, 8, 0.1

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        right, other = torch.randint(self.symbols, (2, count, self.length))
        return torch.where(torch.rand(count, self.length) < self.misread, other, right), right.sort(1).values

    def build(self) -> nn.Module:
        return EncoderDecoder(self.symbols)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        source, target = batch
        return cross_entropy(model(source, target).flatten(0, 1), target.flatten())


class Adding(SampledTask):
    """Add two marked numbers of a sequence (Hochreiter and Schmidhuber, 1997)."""

    steps = 3000
    metric = "root of the squared error"
    length, width = 20, 32

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        numbers, half = torch.rand(count, self.length), self.length // 2
        places = torch.stack([torch.randint(half, (count,)), torch.randint(half, self.length, (count,))], dim=1)
        marks = torch.zeros_like(numbers).scatter_(1, places, 1.0)
        return torch.stack([numbers, marks], dim=2), (numbers * marks).sum(1, keepdim=True)

    def build(self) -> nn.Module:
        return nn.ModuleDict({"lstm": nn.LSTM(2, self.width, batch_first=True), "head": nn.Linear(self.width, 1)})

    def loss(self, model: Any, batch: Any) -> Tensor:
        sequence, total = batch
        states, _ = model["lstm"](sequence)
        return mse_loss(model["head"](states[:, -1]), total)

    def score(self, model: nn.Module, split: str) -> float:
        return math.sqrt(super().score(model, split))
