"""Recurrent networks on made sequences: sequence to sequence, and the adding problem."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, pad

from borat.lab.tasks.task import TrainingTask

SYMBOLS, LENGTH, WRONG = 10, 8, 0.1
BEGIN = SYMBOLS


class EncoderDecoder(nn.Module):
    """A recurrent encoder, and a recurrent decoder that attends to its states."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS + 1, width)
        self.encoder, self.decoder = (nn.GRU(width, width, batch_first=True) for _ in range(2))
        self.query = nn.Linear(width, width)
        self.head = nn.Linear(2 * width, SYMBOLS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of each target symbol, given those before it."""
        memory, state = self.encoder(self.embedding(source))
        states, _ = self.decoder(self.embedding(pad(target[:, :-1], (1, 0), value=BEGIN)), state)
        weights = (self.query(states) @ memory.transpose(1, 2) / memory.shape[2] ** 0.5).softmax(2)
        logits: Tensor = self.head(torch.cat([states, weights @ memory], dim=2))
        return logits


class SequenceToSequence(TrainingTask):
    """Sort eight symbols, a tenth of which were misread, with an encoder and a decoder."""

    steps = 1500
    metric = "cross-entropy per symbol in nats"

    def build(self) -> nn.Module:
        return EncoderDecoder()

    def batches(self, model: nn.Module) -> Iterator[Any]:
        while True:
            yield self._draw(64)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        source, target = batch
        return cross_entropy(model(source, target).flatten(0, 1), target.flatten())

    def score(self, model: nn.Module, split: str) -> float:
        return self.loss(model, self._draw(2000)).item()

    @staticmethod
    def _draw(count: int) -> tuple[Tensor, Tensor]:
        right, other = torch.randint(SYMBOLS, (2, count, LENGTH))
        return torch.where(torch.rand(count, LENGTH) < WRONG, other, right), right.sort(1).values


class AddingNetwork(nn.Module):
    """An LSTM whose last state is read out."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, sequence: Tensor) -> Tensor:
        states, _ = self.lstm(sequence)
        total: Tensor = self.head(states[:, -1])
        return total


class Adding(TrainingTask):
    """Add two marked numbers of a sequence (Hochreiter and Schmidhuber, 1997)."""

    steps = 3000
    metric = "root of the squared error"
    length = 20

    def build(self) -> nn.Module:
        return AddingNetwork()

    def batches(self, model: nn.Module) -> Iterator[Any]:
        while True:
            yield self._draw(64)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        sequence, total = batch
        return mse_loss(model(sequence), total)

    def score(self, model: nn.Module, split: str) -> float:
        return math.sqrt(self.loss(model, self._draw(2000)).item())

    def _draw(self, count: int) -> tuple[Tensor, Tensor]:
        numbers, half = torch.rand(count, self.length), self.length // 2
        places = torch.stack([torch.randint(half, (count,)), torch.randint(half, self.length, (count,))], dim=1)
        marks = torch.zeros_like(numbers).scatter_(1, places, 1.0)
        return torch.stack([numbers, marks], dim=2), (numbers * marks).sum(1, keepdim=True)
