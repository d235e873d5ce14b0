"""The models whose optimizer calls are timed, as the shapes of their parameters: what is known without PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import prod

Shape = tuple[int, ...]


def wide_resnet(depth: int = 40, width: int = 4, classes: int = 100) -> list[Shape]:
    """The parameter shapes of a WRN-depth-width for 32x32 images."""
    shapes: list[Shape] = [(16, 3, 3, 3)]
    channels = 16
    for out in (16 * width, 32 * width, 64 * width):
        for _ in range((depth - 4) // 6):
            shapes += [(channels,), (channels,), (out, channels, 3, 3), (out,), (out,), (out, out, 3, 3)]
            if channels != out:
                shapes.append((out, channels, 1, 1))
            channels = out
    return [*shapes, (channels,), (channels,), (classes, channels), (classes,)]


def resnet18(classes: int = 1000) -> list[Shape]:
    """The parameter shapes of a ResNet-18 for ImageNet."""
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for out in (64, 128, 256, 512):
        for block in range(2):
            shapes += [(out, channels, 3, 3), (out,), (out,), (out, out, 3, 3), (out,), (out,)]
            if block == 0 and channels != out:
                shapes += [(out, channels, 1, 1), (out,), (out,)]
            channels = out
    return [*shapes, (classes, channels), (classes,)]


def bi_lstm(embedding: int = 300, hidden: int = 2048, fully_connected: int = 512) -> list[Shape]:
    """The parameter shapes of InferSent: a Bi-LSTM encoder and a classifier for pairs of sentences."""
    gates = 4 * hidden
    direction: list[Shape] = [(gates, embedding), (gates, hidden), (gates,), (gates,)]
    features = 4 * 2 * hidden
    layers: list[Shape] = []
    for n_in, n_out in ((features, fully_connected), (fully_connected, fully_connected), (fully_connected, 3)):
        layers += [(n_out, n_in), (n_out,)]
    return [*direction, *direction, *layers]


def small_mlp(widths: Shape = (64, 128, 80, 10)) -> list[Shape]:
    """The parameter shapes of a multi-layer perceptron for scikit-learn's digits."""
    return [shape for a, b in pairwise(widths) for shape in ((b, a), (b,))]


MODELS: dict[str, Callable[[], list[Shape]]] = {
    "WRN-40-4": wide_resnet,
    "ResNet-18": resnet18,
    "Bi-LSTM": bi_lstm,
    "MLP": small_mlp,
}


def shape_summary(model: str) -> str:
    shapes = MODELS[model]()
    return f"{sum(prod(s) for s in shapes):,} parameters in {len(shapes)} tensors"
