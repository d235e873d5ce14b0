"""Convolutional networks: a small CNN, ResNet-18, wide residual networks and DenseNets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN = 128
"""Width of the hidden layer of a CNN."""
BOTTLENECK = 4
"""Number of channels of a dense layer's 1x1 convolution, in units of the growth rate."""
COMPRESSION = 0.5
"""Share of the channels that a transition keeps."""


class CNN(nn.Module):
    """Two 3x3 convolutions with batch normalisation and pooling, and a hidden layer: trains in minutes on a CPU."""

    def __init__(self, *, input_shape: Sequence[int], classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        channels, height, width = input_shape
        layers: list[nn.Module] = []
        for out in (32, 64):
            layers += [conv(3, channels, out), nn.BatchNorm2d(out), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
            channels, height, width = out, height // 2, width // 2
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            *(nn.Linear(channels * height * width, HIDDEN), nn.ReLU(inplace=True)),
            *(nn.Dropout(dropout), nn.Linear(HIDDEN, classes)),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images).flatten(1))


class DeepNetwork(nn.Module):
    """A stem, blocks, a last activation, global average pooling and a linear classifier.

    Because of the pooling, images may have any size. Convolutions are initialised as in He et al. (2015), which
    preserves the size of the gradients; the bias of the classifier is initialised to zero.
    """

    def __init__(
        self, stem: nn.Module, blocks: Sequence[nn.Module], activation: nn.Module, channels: int, classes: int
    ) -> None:
        super().__init__()
        self.stem = stem
        self.blocks = nn.Sequential(*blocks)
        self.activation = activation
        self.classifier = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.classifier.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.activation(self.blocks(self.stem(images))).mean((2, 3)))


class ResNet18(DeepNetwork):
    """The residual network with 18 layers for ImageNet (He, Zhang, Ren and Sun, 2016)."""

    def __init__(self, *, input_shape: Sequence[int], classes: int) -> None:
        channels = 64
        stem = nn.Sequential(
            conv(7, input_shape[0], channels, stride=2),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks: list[nn.Module] = []
        for out in (64, 128, 256, 512):
            blocks += [BasicBlock(channels, out), BasicBlock(out, out)]
            channels = out
        super().__init__(stem, blocks, nn.Identity(), channels, classes)


class BasicBlock(nn.Module):
    """Convolve and normalise twice, with a ReLU in between and one after adding the input."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        stride = 1 if channels == out else 2
        self.conv1 = conv(3, channels, out, stride)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = conv(3, out, out)
        self.norm2 = nn.BatchNorm2d(out)
        self.shortcut = (
            nn.Identity() if channels == out else nn.Sequential(conv(1, channels, out, stride), nn.BatchNorm2d(out))
        )

    def forward(self, x: Tensor) -> Tensor:
        residual = self.norm2(self.conv2(rectify(self.norm1(self.conv1(x)))))
        return rectify(residual + self.shortcut(x))


class WideResNet(DeepNetwork):
    """WRN-depth-width (Zagoruyko and Komodakis, 2016): three stages with 16, 32 and 64 times ``width`` channels.

    The paper's networks are WRN-40-4 on CIFAR and WRN-16-4 on SVHN and Tiny ImageNet.

    Args:
        depth: 6n + 4, for n blocks in each stage.
        width: the factor k of the number of channels.
        dropout: dropout probability between the two convolutions of each block (0.4 for SVHN).
    """

    def __init__(
        self, depth: int, width: int, *, input_shape: Sequence[int], classes: int, dropout: float = 0.0
    ) -> None:
        count = blocks_per_stage(depth, "wide residual network")
        channels = 16
        stem = conv(3, input_shape[0], channels)
        blocks: list[nn.Module] = []
        for stage, out in enumerate((16 * width, 32 * width, 64 * width)):
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(WideBlock(channels, out, stride, dropout))
                channels = out
        super().__init__(stem, blocks, normalised_relu(channels), channels, classes)


class WideBlock(nn.Module):
    """Normalise, apply a ReLU and convolve, twice; then add the input."""

    def __init__(self, channels: int, out: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = conv(3, channels, out, stride)
        self.norm2 = nn.BatchNorm2d(out)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = conv(3, out, out)
        self.shortcut = conv(1, channels, out, stride) if channels != out else None

    def forward(self, x: Tensor) -> Tensor:
        activated = rectify(self.norm1(x))
        # both branches share the activation if the number of channels changes
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        return self.conv2(self.dropout(rectify(self.norm2(self.conv1(activated))))) + shortcut


class DenseNet(DeepNetwork):
    """DenseNet-BC-depth-growth for small images (Huang, Liu, van der Maaten and Weinberger, 2017).

    Three dense blocks with bottlenecks, and two transitions that halve the resolution. The paper's "bottleneck DenseNet
    40-40" has depth 40 and growth rate 40: six layers of two convolutions in each block.

    Args:
        depth: 6n + 4, for n layers in each block.
        growth: number of channels that each layer adds.
        dropout: dropout probability after each convolution but the first.
    """

    def __init__(
        self, depth: int, growth: int, *, input_shape: Sequence[int], classes: int, dropout: float = 0.0
    ) -> None:
        layers = blocks_per_stage(depth, "DenseNet-BC")
        channels = 2 * growth
        stem = conv(3, input_shape[0], channels)
        blocks: list[nn.Module] = []
        for block in range(3):
            if block > 0:
                blocks.append(Transition(channels, int(COMPRESSION * channels), dropout))
                channels = int(COMPRESSION * channels)
            for _ in range(layers):
                blocks.append(DenseLayer(channels, growth, dropout))
                channels += growth
        super().__init__(stem, blocks, normalised_relu(channels), channels, classes)


class DenseLayer(nn.Module):
    """Append ``growth`` channels, computed from all previous channels."""

    def __init__(self, channels: int, growth: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = conv(1, channels, BOTTLENECK * growth)
        self.norm2 = nn.BatchNorm2d(BOTTLENECK * growth)
        self.conv2 = conv(3, BOTTLENECK * growth, growth)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        new = self.dropout(self.conv1(rectify(self.norm1(x))))
        new = self.dropout(self.conv2(rectify(self.norm2(new))))
        return torch.cat((x, new), 1)


class Transition(nn.Module):
    """Reduce the number of channels and halve the resolution."""

    def __init__(self, channels: int, out: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = conv(1, channels, out)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return functional.avg_pool2d(self.dropout(self.conv(rectify(self.norm(x)))), 2)


def blocks_per_stage(depth: int, name: str) -> int:
    """Return the number of blocks of two convolutions in each of the three stages of a network of this depth.

    The other four layers are the first convolution and the three shortcuts of a wide residual network, or the first
    convolution, the two transitions and the classifier of a DenseNet.
    """
    blocks, rest = divmod(depth - 4, 6)
    if blocks < 1 or rest:
        raise ValueError(f"the depth of a {name} must be 6n + 4 (10, 16, 22, 28, 34, 40, ...), got {depth}")
    return blocks


def conv(size: int, channels: int, out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, out, size, stride=stride, padding=size // 2, bias=False)


def rectify(x: Tensor) -> Tensor:
    return functional.relu(x, inplace=True)


def normalised_relu(channels: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
