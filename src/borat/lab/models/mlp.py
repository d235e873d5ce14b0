"""Small models: logistic regression, multi-layer perceptrons, and a convolutional network for Fashion-MNIST."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor, nn

from borat._checks import check_count, check_flag
from borat.lab.models.common import check_dropout, image_shape


class LogisticRegression(nn.Module):
    """One linear layer on the flattened input, zero at first: its problem is convex, so no start is better.

    Args:
        input_shape: the shape of one input.
        classes: the number of scores; 2 for a binary problem.
    """

    def __init__(self, *, input_shape: Sequence[int], classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(flat_size(input_shape), checked_classes(classes))
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.linear(inputs.flatten(1))
        return scores


class MLP(nn.Module):
    """A multi-layer perceptron with rectified hidden layers on the flattened input.

    Args:
        widths: of the hidden layers.
        input_shape: the shape of one input.
        classes: the number of scores.
        dropout: after each hidden layer.
        batch_norm: normalise before each rectifier; it takes the place of the biases.
    """

    def __init__(
        self, *widths: int, input_shape: Sequence[int], classes: int, dropout: float = 0.0, batch_norm: bool = False
    ) -> None:
        super().__init__()
        check_dropout(dropout)
        check_flag("batch_norm", batch_norm)
        features = flat_size(input_shape)
        layers: list[nn.Module] = []
        for width in widths:
            check_count("width", width)
            layers.append(nn.Linear(features, width, bias=not batch_norm))
            if batch_norm:
                layers.append(nn.BatchNorm1d(width))
            layers += [nn.ReLU(inplace=True), nn.Dropout(dropout)]
            features = width
        self.layers = nn.Sequential(*layers, nn.Linear(features, checked_classes(classes)))

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.layers(inputs.flatten(1))
        return scores


class CNN(nn.Module):
    """Two 3x3 convolutions with batch normalisation and pooling, then a hidden layer: minutes on a CPU.

    Args:
        input_shape: (channels, height, width) of an image.
        classes: the number of scores.
        dropout: before the classifier.
        channels: of the two convolutions.
        hidden: the width of the hidden layer.
    """

    def __init__(
        self,
        *,
        input_shape: Sequence[int],
        classes: int,
        dropout: float = 0.0,
        channels: tuple[int, int] = (32, 64),
        hidden: int = 128,
    ) -> None:
        super().__init__()
        check_dropout(dropout)
        check_count("hidden", hidden)
        previous, height, width = image_shape(input_shape)
        layers: list[nn.Module] = []
        for out in channels:
            check_count("channels", out)
            layers += [nn.Conv2d(previous, out, 3, padding=1, bias=False), nn.BatchNorm2d(out)]
            layers += [nn.ReLU(inplace=True), nn.MaxPool2d(2)]
            previous, height, width = out, height // 2, width // 2
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(previous * height * width, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, checked_classes(classes)),
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(images).flatten(1))
        return scores


def flat_size(input_shape: Sequence[int]) -> int:
    for size in input_shape:
        check_count("input_shape", size)
    return prod(input_shape)


def checked_classes(classes: int) -> int:
    check_count("classes", classes)
    return classes
