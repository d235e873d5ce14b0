"""Flips, padded crops and normalisation of a whole batch at once, on the device the batch is on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Augmentation:
    """Random crops of the image padded with ``padding`` black pixels on each side, and random horizontal flips.

    A padding of 0 leaves out the crops. ``flips`` is off where a mirrored image is of another class, as a digit is.
    """

    padding: int = 0
    flips: bool = False

    def __bool__(self) -> bool:
        return self.padding > 0 or self.flips

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Random numbers for ``count`` images, (3, count): the crop's top and left edge, and whether to flip."""
        edges = torch.randint(2 * self.padding + 1, (2, count), generator=generator)
        flips = torch.randint(2 if self.flips else 1, (1, count), generator=generator)
        return torch.cat([edges, flips])

    def apply(self, images: Tensor, draw: Tensor) -> Tensor:
        """Crop and flip ``images``, (count, channels, height, width), as drawn. They stay bytes."""
        top, left, flip = draw[:, :, None]
        count, channels, height, width = images.shape
        rows = top + torch.arange(height, device=images.device)
        columns = torch.arange(width, device=images.device)
        columns = left + torch.where(flip.bool(), width - 1 - columns, columns)
        # one gather for crop and flip, over the flattened padded image
        places = rows[:, :, None] * (width + 2 * self.padding) + columns[:, None]
        padded = pad(images, [self.padding] * 4).flatten(2)
        return padded.gather(2, places.view(count, 1, -1).expand(-1, channels, -1)).view_as(images)


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Centre and scale each channel; ``mean`` and ``std`` are in the units of the pixels, (channels,)."""
    return images.float().sub_(mean[:, None, None]).div_(std[:, None, None])


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel of ``images``, bytes.

    From the counts of the 256 values: exact, and without a copy of the images in floating point. A channel that is
    constant gets a standard deviation of 1, so that it is centred and not divided by zero.
    """
    values = torch.arange(256, dtype=torch.float64)
    statistics = []
    for channel in images.unbind(1):
        counts = sum(
            (part.flatten().bincount(minlength=256) for part in torch.split(channel, 8192)),
            torch.zeros(256, dtype=torch.int64),
        )
        shares = counts.double() / counts.sum()
        mean = shares @ values
        std = (shares @ (values - mean) ** 2).sqrt()
        statistics.append((mean, std if std > 0.0 else torch.ones_like(std)))
    means, stds = zip(*statistics, strict=True)
    return torch.stack(means).float(), torch.stack(stds).float()
