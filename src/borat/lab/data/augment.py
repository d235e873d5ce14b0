"""Flips, padded crops and normalisation of a whole batch at once, on the device of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Augmentation:
    """Random crops of the image padded with ``padding`` black pixels on each side, and random horizontal flips.

    A padding of 0 disables crops. ``flips`` is off for data whose mirror images have other classes, such as digits.
    """

    padding: int = 0
    flips: bool = False

    def __bool__(self) -> bool:
        return self.padding > 0 or self.flips

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw random numbers for ``count`` images, (3, count): top and left edge of the crop, and whether to flip."""
        edges = torch.randint(2 * self.padding + 1, (2, count), generator=generator)
        flips = torch.randint(2 if self.flips else 1, (1, count), generator=generator)
        return torch.cat([edges, flips])

    def apply(self, images: Tensor, draws: Tensor) -> Tensor:
        """Crop and flip ``images``, (count, channels, height, width), as drawn. They stay bytes."""
        top, left, flip = draws[:, :, None]
        count, channels, height, width = images.shape
        rows = top + torch.arange(height, device=images.device)
        columns = torch.arange(width, device=images.device)
        columns = left + torch.where(flip.bool(), width - 1 - columns, columns)
        # one gather for crop and flip, over the flattened padded image
        places = rows[:, :, None] * (width + 2 * self.padding) + columns[:, None]
        padded = pad(images, [self.padding] * 4).flatten(2)
        return padded.gather(2, places.view(count, 1, -1).expand(-1, channels, -1)).view_as(images)


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Centre and scale each channel; ``mean`` and ``std`` are in the units of the pixels."""
    centre, scale = (torch.tensor(values, device=images.device)[:, None, None] for values in (mean, std))
    return images.float().sub_(centre).div_(scale)


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation of each channel of ``images``, bytes.

    They are computed from the counts of the 256 values: exact, and without a floating-point copy of the images. A
    constant channel gets a standard deviation of 1, so that it is centred and not divided by zero.
    """
    values = torch.arange(256, dtype=torch.float64)
    means, stds = [], []
    for channel in images.unbind(1):
        parts = [part.flatten().bincount(minlength=256) for part in torch.split(channel, 8192)]
        counts = torch.stack(parts).sum(0)
        shares = counts.double() / counts.sum()
        means.append(shares @ values)
        std = (shares @ (values - means[-1]) ** 2).sqrt()
        stds.append(std if std > 0.0 else torch.ones_like(std))
    return torch.stack(means).float(), torch.stack(stds).float()
