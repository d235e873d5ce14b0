"""Parts of several families: checks of arguments, convolutions, and the classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from borat._checks import check_count, is_number

SMALLEST_IMAGE = 4
"""Pixels a side: most of the networks halve an image twice."""


def image_shape(input_shape: Sequence[int]) -> tuple[int, int, int]:
    """Return the channels, height and width of an image."""
    if len(input_shape) != 3:
        raise ValueError(f"input_shape must be (channels, height, width), got {tuple(input_shape)!r}")
    channels, height, width = input_shape
    check_count("input_shape's channels", channels)
    if min(height, width) < SMALLEST_IMAGE:
        raise ValueError(
            f"images must have at least {SMALLEST_IMAGE} x {SMALLEST_IMAGE} pixels, got {height} x {width}; "
            f"image_size scales them, such as image_size={8 * SMALLEST_IMAGE}"
        )
    return channels, height, width


def check_dropout(dropout: Any) -> None:
    if not is_number(dropout) or not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must be a number in [0, 1), got {dropout!r}")


def blocks_per_stage(depth: int, name: str) -> int:
    """Return the number of blocks of two convolutions in each of the three stages of a network of this depth.

    The other four layers are the first convolution and the three shortcuts of a wide residual network, or the first
    convolution, the two transitions and the classifier of a DenseNet.
    """
    blocks, rest = divmod(depth - 4, 6)
    if blocks < 1 or rest:
        raise ValueError(f"the depth of a {name} must be 6n + 4 (10, 16, 22, 28, 34, 40, ...), got {depth}")
    return blocks


def conv3x3(channels: int, out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)


def conv1x1(channels: int, out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, out, 1, stride=stride, bias=False)


def initialise(model: nn.Module) -> None:
    """The initialisation of He et al. (2015) that keeps the size of the gradients; no bias in the classifier.

    Batch normalisation starts as the identity, which is PyTorch's default.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


class PreActivationNetwork(nn.Module):
    """A convolution, blocks that begin with a normalisation, one more, and a classifier of the mean over the image."""

    def __init__(self, stem: nn.Module, blocks: Sequence[nn.Module], channels: int, classes: int) -> None:
        super().__init__()
        self.stem = stem
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(channels)
        self.classifier = nn.Linear(channels, classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.blocks(self.stem(images))), inplace=True)
        scores: Tensor = self.classifier(x.mean((2, 3)))
        return scores
