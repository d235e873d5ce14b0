"""The residual network with 18 layers for ImageNet (He, Zhang, Ren and Sun, 2016)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from borat._checks import check_count
from borat.lab.models.common import conv1x1, conv3x3, image_shape, initialise


class ResNet18(nn.Module):
    """A 7x7 convolution, then four stages of two blocks each, with 64 to 512 channels.

    Args:
        input_shape: (channels, height, width) of an image.
        classes: the number of scores.
    """

    def __init__(self, *, input_shape: Sequence[int], classes: int) -> None:
        super().__init__()
        check_count("classes", classes)
        channels = 64
        self.stem = nn.Sequential(
            nn.Conv2d(image_shape(input_shape)[0], channels, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        stages: list[nn.Module] = []
        for out in (64, 128, 256, 512):
            stages += [BasicBlock(channels, out), BasicBlock(out, out)]
            channels = out
        self.blocks = nn.Sequential(*stages)
        self.classifier = nn.Linear(channels, classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.blocks(self.stem(images)).mean((2, 3)))
        return scores


class BasicBlock(nn.Module):
    """Convolve and normalise, twice; rectify in between and after adding the input."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        stride = 1 if channels == out else 2
        self.conv1 = conv3x3(channels, out, stride)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = conv3x3(out, out)
        self.norm2 = nn.BatchNorm2d(out)
        self.shortcut = (
            nn.Identity() if channels == out else nn.Sequential(conv1x1(channels, out, stride), nn.BatchNorm2d(out))
        )

    def forward(self, x: Tensor) -> Tensor:
        residual: Tensor = functional.relu(self.norm1(self.conv1(x)), inplace=True)
        residual = self.norm2(self.conv2(residual))
        return functional.relu(residual + self.shortcut(x), inplace=True)
