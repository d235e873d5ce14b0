"""Wide residual networks (Zagoruyko and Komodakis, 2016)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from borat._checks import check_count
from borat.lab.models.common import PreActivationNetwork, blocks_per_stage, check_dropout, conv1x1, conv3x3, image_shape


class WideResNet(PreActivationNetwork):
    """WRN-depth-width: three stages of pre-activation blocks with 16, 32 and 64 times ``width`` channels.

    The paper's networks are WRN-40-4 on CIFAR and WRN-16-4 on SVHN and Tiny ImageNet. The features of the last stage
    are averaged over the image, so that the same network takes images of any size.

    Args:
        depth: 6n + 4, for n blocks in each stage.
        width: the factor k of the channels.
        input_shape: (channels, height, width) of an image.
        classes: the number of scores.
        dropout: between the two convolutions of each block (0.4 for SVHN).
    """

    def __init__(
        self, depth: int, width: int, *, input_shape: Sequence[int], classes: int, dropout: float = 0.0
    ) -> None:
        blocks = blocks_per_stage(depth, "wide residual network")
        check_count("width", width)
        check_count("classes", classes)
        check_dropout(dropout)
        channels = 16
        stem = conv3x3(image_shape(input_shape)[0], channels)
        stages: list[nn.Module] = []
        for stage, out in enumerate((16 * width, 32 * width, 64 * width)):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(WideBlock(channels, out, stride, dropout))
                channels = out
        super().__init__(stem, stages, channels, classes)


class WideBlock(nn.Module):
    """Normalise, rectify, convolve; twice, and add the input."""

    def __init__(self, channels: int, out: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = conv3x3(channels, out, stride)
        self.norm2 = nn.BatchNorm2d(out)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = conv3x3(out, out)
        self.shortcut = conv1x1(channels, out, stride) if channels != out else None

    def forward(self, x: Tensor) -> Tensor:
        activated = functional.relu(self.norm1(x), inplace=True)
        # where the width changes the activation is shared by both branches
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        residual: Tensor = functional.relu(self.norm2(self.conv1(activated)), inplace=True)
        residual = self.conv2(self.dropout(residual))
        return residual + shortcut
