"""Image data sets that fit into memory, decoded once and kept as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from borat.lab.data.cache import cached
from borat.lab.data.errors import DataError
from borat.lab.data.pixels import decode_images
from borat.lab.data.source import Hub, Source, open_split
from borat.lab.data.splits import hold_out, limit
from borat.lab.data.task import MemorySplit, Options, Task, make_task

NAME_COLUMNS = "; set image_column and label_column to read others"


@dataclass(frozen=True)
class ImageTransform:
    """Augmentation and normalisation of images of shape (examples, channels, height, width), on their device.

    Args:
        mean: mean of each channel, in the units of the pixels.
        std: standard deviation of each channel.
        padding: number of black pixels to add on each side before a random crop; 0 disables cropping.
        flips: flip horizontally at random. Off for data whose mirror images have other classes, such as digits.
    """

    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    padding: int = 0
    flips: bool = False

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw numbers of shape (3, count) for ``count`` images: top and left edge of the crop, and 1 to flip."""
        edges = torch.randint(2 * self.padding + 1, (2, count), generator=generator)
        flips = torch.randint(2 if self.flips else 1, (1, count), generator=generator)
        return torch.cat([edges, flips])

    def __call__(self, tensors: tuple[Tensor, ...], draws: Tensor | None) -> tuple[Tensor, ...]:
        images = tensors[0] if draws is None else self.augment(tensors[0], draws.to(tensors[0].device))
        return (normalise(images, self.mean, self.std),)

    def augment(self, images: Tensor, draws: Tensor) -> Tensor:
        """Crop and flip images as drawn; they stay bytes."""
        top, left, flip = draws[:, :, None]
        count, channels, height, width = images.shape
        rows = top + torch.arange(height, device=images.device)
        columns = torch.arange(width, device=images.device)
        columns = left + torch.where(flip.bool(), width - 1 - columns, columns)
        # one gather for crop and flip, over the flattened padded image
        places = rows[:, :, None] * (width + 2 * self.padding) + columns[:, None]
        padded = functional.pad(images, [self.padding] * 4).flatten(2)
        return padded.gather(2, places.view(count, 1, -1).expand(-1, channels, -1)).view_as(images)


@dataclass(frozen=True)
class ImageSet:
    """An image data set: its location on the hub, its contents, and its use in the paper.

    The validation set consists of ``held_out`` training examples. If ``held_out`` is None, the data set has its own
    validation set, and the labels of its test set are not public. With ``extra``, a split of that name is added to the
    training set. With ``augment``, training images are flipped, and cropped after padding them by 4 pixels.
    """

    hub: Hub
    shape: tuple[int, int, int]
    classes: int
    image: str = "image"
    label: str = "label"
    coarse: str | None = None
    coarse_classes: int = 0
    held_out: int | None = None
    extra: bool = False
    augment: bool = False


IMAGE_SETS = {
    "mnist": ImageSet(Hub("ylecun/mnist"), (1, 28, 28), 10, held_out=10_000),
    "fashion_mnist": ImageSet(Hub("zalando-datasets/fashion_mnist"), (1, 28, 28), 10, held_out=10_000),
    "cifar10": ImageSet(Hub("uoft-cs/cifar10"), (3, 32, 32), 10, image="img", held_out=5_000, augment=True),
    "cifar100": ImageSet(
        Hub("uoft-cs/cifar100"),
        (3, 32, 32),
        100,
        image="img",
        label="fine_label",
        coarse="coarse_label",
        coarse_classes=20,
        held_out=5_000,
        augment=True,
    ),
    "svhn": ImageSet(Hub("ufldl-stanford/svhn", "cropped_digits"), (3, 32, 32), 10, held_out=6_000, extra=True),
    "tiny_imagenet": ImageSet(Hub("zh-plus/tiny-imagenet", validation="valid"), (3, 64, 64), 200, augment=True),
}


def load_image_set(name: str, options: Options) -> Task:
    """Load one of :data:`IMAGE_SETS`."""
    spec = IMAGE_SETS[name]
    spec = replace(spec, image=options.image_column or spec.image, label=options.label_column or spec.label)
    if spec.label == spec.coarse:  # classify by super-class
        spec = replace(spec, classes=spec.coarse_classes, coarse=None)
    train, families = _read(name, spec, "train", options)
    if spec.held_out is None:
        if options.validation_size is not None:
            raise DataError(f"{name} has its own validation set; omit validation_size")
        splits = {"train": train, "validation": _read(name, spec, "validation", options)[0]}
    else:
        train, validation = hold_out(train, options.validation_size or spec.held_out)
        splits = {"train": train, "validation": validation, "test": _read(name, spec, "test", options)[0]}
    if spec.extra:
        extra, _ = _read(name, spec, "extra", options)
        images = torch.cat([*train.tensors, *extra.tensors])
        labels = torch.cat([train.labels, extra.labels])
        splits["train"] = MemorySplit(labels, train.sources + extra.sources, (images,))
    return make_image_task(name, splits, options, augment=spec.augment, classes=spec.classes, families=families)


def _read(name: str, spec: ImageSet, split: str, options: Options) -> tuple[MemorySplit, Tensor | None]:
    """Return a split and, if the data set has super-classes, that of each class."""
    sources = open_split(name, spec.hub, split, options.data_dir)
    images = _decode(f"{name}-{split}", sources, spec, options)

    def read_labels(column: str, classes: int) -> Tensor:
        return torch.tensor([n for s in sources for n in s.read_classes(column, range(classes), NAME_COLUMNS)])

    where = tuple(source.where for source in sources)
    found = MemorySplit(read_labels(spec.label, spec.classes), where, (images,))
    if spec.coarse is None:
        return found, None
    coarse, families = read_labels(spec.coarse, spec.coarse_classes), torch.full((spec.classes,), -1)
    families[found.labels] = coarse
    wrong = found.labels[families[found.labels] != coarse].tolist()
    if wrong:
        raise DataError(f"{', '.join(where)}: class {wrong[0]} appears with more than one super-class")
    families[families < 0] = int(coarse.max()) + 1  # classes without examples
    return found, families


def _decode(name: str, sources: Sequence[Source], spec: ImageSet, options: Options) -> Tensor:
    channels, *pixels = spec.shape
    size = [options.image_size or side for side in pixels]

    def decode() -> dict[str, Tensor]:
        encoded = chain.from_iterable(s.read(spec.image, "encoded images (bytes)", NAME_COLUMNS) for s in sources)
        count, mode = sum(source.rows for source in sources), "L" if channels == 1 else "RGB"
        images = decode_images(encoded, count, mode=mode, pixels=(pixels[0], pixels[1]))
        if size != pixels:
            images = functional.interpolate(images, size, mode="bilinear", antialias=True)
        return {"images": images}

    identity = tuple(part for source in sources for part in source.identity)
    return cached(name, identity and (identity, spec.image, spec.shape, size), decode)["images"]


def load_digits(options: Options) -> Task:
    """Load scikit-learn's digits: 1,797 images of 8 × 8 pixels between 0 and 16. A fifth is the test set."""
    from sklearn import datasets  # slow to import

    images, labels = datasets.load_digits(return_X_y=True)
    pixels = torch.as_tensor(images).to(torch.uint8).view(-1, 1, 8, 8)
    rest, test = hold_out(MemorySplit(torch.as_tensor(labels), ("scikit-learn",), (pixels,)), len(labels) // 5)
    train, validation = hold_out(rest, options.validation_size or 180)
    splits = {"train": train, "validation": validation, "test": test}
    return make_image_task("digits", splits, options, classes=10, white=16)


def make_image_task(
    name: str,
    splits: Mapping[str, MemorySplit],
    options: Options,
    *,
    augment: bool = False,
    white: int = 255,
    **about: Any,
) -> Task:
    """Return a task on images, normalised by the statistics of the training split; see :func:`make_task`."""
    train = limit(splits["train"], options.train_limit)
    (images,) = train.tensors
    mean, std = channel_statistics(images)
    transform = ImageTransform(mean.tolist(), std.tolist(), padding=4 if augment else 0, flips=augment)
    prepared: dict[str, Any] = {"transform": transform, "draw": transform.draw}
    return make_task(
        name,
        {key: replace(split, **prepared) for key, split in {**splits, "train": train}.items()},
        options,
        input_shape=tuple(images.shape[1:]),
        mean=tuple((mean / white).tolist()),
        std=tuple((std / white).tolist()),
        augment=options.augment and augment,
        **about,
    )


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Centre and scale each channel; ``mean`` and ``std`` are in the units of the pixels."""
    centre, scale = (torch.tensor(values, device=images.device)[:, None, None] for values in (mean, std))
    return images.float().sub_(centre).div_(scale)


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation of each channel of ``images``, which are bytes.

    They are computed from the counts of the 256 values, exactly and without a floating-point copy of the images. A
    constant channel has a standard deviation of 1 to avoid a division by zero.
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
