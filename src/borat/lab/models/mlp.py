"""Logistic regression and multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor, nn


class LogisticRegression(nn.Module):
    """One linear layer on the flattened input, initialised to zero because the problem is convex."""

    def __init__(self, *, input_shape: Sequence[int], classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(prod(input_shape), classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs.flatten(1))


class MLP(nn.Module):
    """A multi-layer perceptron with ReLU activations on the flattened input.

    Args:
        widths: widths of the hidden layers.
        dropout: dropout probability after each hidden layer.
        batch_norm: apply batch normalisation before each ReLU; it replaces the biases.
    """

    def __init__(
        self, *widths: int, input_shape: Sequence[int], classes: int, dropout: float = 0.0, batch_norm: bool = False
    ) -> None:
        super().__init__()
        features = prod(input_shape)
        layers: list[nn.Module] = []
        for width in widths:
            layers.append(nn.Linear(features, width, bias=not batch_norm))
            if batch_norm:
                layers.append(nn.BatchNorm1d(width))
            layers += [nn.ReLU(inplace=True), nn.Dropout(dropout)]
            features = width
        self.layers = nn.Sequential(*layers, nn.Linear(features, classes))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs.flatten(1))
