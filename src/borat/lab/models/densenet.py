"""Densely connected networks (Huang, Liu, van der Maaten and Weinberger, 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from borat._checks import check_count
from borat.lab.models.common import PreActivationNetwork, blocks_per_stage, check_dropout, conv1x1, conv3x3, image_shape

BOTTLENECK = 4
"""Channels of the 1x1 convolution, in units of the growth rate."""

COMPRESSION = 0.5
"""The share of the channels that a transition keeps."""


class DenseNet(PreActivationNetwork):
    """DenseNet-BC-depth-growth for small images: three dense blocks with bottlenecks, halved by two transitions.

    The "bottleneck DenseNet 40-40" of the paper has depth 40 and growth rate 40, that is six layers of two
    convolutions in each block.

    Args:
        depth: 6n + 4, for n layers in each block.
        growth: the channels that each layer adds.
        input_shape: (channels, height, width) of an image.
        classes: the number of scores.
        dropout: after each convolution but the first.
    """

    def __init__(
        self, depth: int, growth: int, *, input_shape: Sequence[int], classes: int, dropout: float = 0.0
    ) -> None:
        layers = blocks_per_stage(depth, "DenseNet-BC")
        check_count("growth", growth)
        check_count("classes", classes)
        check_dropout(dropout)
        channels = 2 * growth
        stem = conv3x3(image_shape(input_shape)[0], channels)
        parts: list[nn.Module] = []
        for block in range(3):
            if block > 0:
                parts.append(Transition(channels, int(COMPRESSION * channels), dropout))
                channels = int(COMPRESSION * channels)
            for _ in range(layers):
                parts.append(DenseLayer(channels, growth, dropout))
                channels += growth
        super().__init__(stem, parts, channels, classes)


class DenseLayer(nn.Module):
    """Adds ``growth`` channels, computed from all channels before."""

    def __init__(self, channels: int, growth: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = conv1x1(channels, BOTTLENECK * growth)
        self.norm2 = nn.BatchNorm2d(BOTTLENECK * growth)
        self.conv2 = conv3x3(BOTTLENECK * growth, growth)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        new = self.dropout(self.conv1(functional.relu(self.norm1(x), inplace=True)))
        new = self.dropout(self.conv2(functional.relu(self.norm2(new), inplace=True)))
        return torch.cat((x, new), 1)


class Transition(nn.Module):
    """Fewer channels at half the resolution."""

    def __init__(self, channels: int, out: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = conv1x1(channels, out)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return functional.avg_pool2d(self.dropout(self.conv(functional.relu(self.norm(x), inplace=True))), 2)
