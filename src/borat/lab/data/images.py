"""Image data sets that fit into memory: decoded once, kept as bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from borat.lab.data.augment import Augmentation, channel_statistics
from borat.lab.data.cache import cached
from borat.lab.data.decode import decode_split
from borat.lab.data.errors import DataError, SchemaError
from borat.lab.data.noise import any_class, families_of, switch_labels
from borat.lab.data.options import Options
from borat.lab.data.source import Hub, open_split
from borat.lab.data.splits import hold_out, limit
from borat.lab.data.task import Description, ImageSplit, Task

FLIPS_AND_CROPS = Augmentation(padding=4, flips=True)
NOTHING = Augmentation()
NAME_COLUMNS = "say with image_column and label_column which ones to read"


@dataclass(frozen=True)
class ImageSet:
    """An image data set: its place on the hub, its contents and how the paper uses it.

    ``held_out`` training examples make the validation set; with None the data set has one of its own, and the labels
    of its test set are not public. ``extra`` says that a split ``extra`` joins the training set.
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
    augmentation: Augmentation = NOTHING

    @property
    def label_columns(self) -> dict[str, int]:
        coarse = {self.coarse: self.coarse_classes} if self.coarse else {}
        return {self.label: self.classes, **coarse}


IMAGE_SETS = {
    "mnist": ImageSet(Hub("ylecun/mnist"), (1, 28, 28), 10, held_out=10_000),
    "fashion_mnist": ImageSet(Hub("zalando-datasets/fashion_mnist"), (1, 28, 28), 10, held_out=10_000),
    "cifar10": ImageSet(
        Hub("uoft-cs/cifar10"), (3, 32, 32), 10, image="img", held_out=5_000, augmentation=FLIPS_AND_CROPS
    ),
    "cifar100": ImageSet(
        Hub("uoft-cs/cifar100"),
        (3, 32, 32),
        100,
        image="img",
        label="fine_label",
        coarse="coarse_label",
        coarse_classes=20,
        held_out=5_000,
        augmentation=FLIPS_AND_CROPS,
    ),
    "svhn": ImageSet(Hub("ufldl-stanford/svhn", "cropped_digits"), (3, 32, 32), 10, held_out=6_000, extra=True),
    "tiny_imagenet": ImageSet(
        Hub("zh-plus/tiny-imagenet", validation="valid"), (3, 64, 64), 200, augmentation=FLIPS_AND_CROPS
    ),
}


@dataclass
class Decoded:
    """One split of a data set as its files hold it."""

    images: Tensor
    labels: Tensor
    coarse: Tensor | None
    sources: tuple[str, ...]

    def pick(self, indices: Tensor) -> Decoded:
        coarse = None if self.coarse is None else self.coarse[indices]
        return Decoded(self.images[indices], self.labels[indices], coarse, self.sources)

    def join(self, other: Decoded) -> Decoded:
        images, labels = torch.cat([self.images, other.images]), torch.cat([self.labels, other.labels])
        return Decoded(images, labels, None, self.sources + other.sources)


def load_image_set(name: str, options: Options) -> Task:
    """Load one of :data:`IMAGE_SETS`."""
    spec = IMAGE_SETS[name]
    spec = replace(spec, image=options.image_column or spec.image, label=options.label_column or spec.label)
    if spec.label == spec.coarse:  # the super-classes are what is asked for
        spec = replace(spec, classes=spec.coarse_classes, coarse=None)
    train = _decode(name, spec, "train", options)
    if spec.held_out is None:
        if options.validation_size is not None:
            raise DataError(f"{name} has a validation set of its own; leave out validation_size")
        validation = _decode(name, spec, "validation", options)
        splits = {"train": train, "validation": validation}
    else:
        test = _decode(name, spec, "test", options)
        held = spec.held_out if options.validation_size is None else options.validation_size
        rest, validation_rows = hold_out(len(train.labels), held, ", ".join(train.sources))
        splits = {"train": train.pick(rest), "validation": train.pick(validation_rows), "test": test}
    if spec.extra:
        splits["train"] = splits["train"].join(_decode(name, spec, "extra", options))
    notes = () if "test" in splits else ("the labels of the test set are not public",)
    return make_task(name, splits, spec.classes, spec.augmentation, options, notes=notes)


def _decode(name: str, spec: ImageSet, split: str, options: Options) -> Decoded:
    columns = {spec.image: "image", **dict.fromkeys(spec.label_columns, "integer")}
    try:
        sources = open_split(name, spec.hub, split, columns, options.data_dir)
    except SchemaError as error:
        raise SchemaError(f"{error}; {NAME_COLUMNS}") from error
    size = options.image_size
    shape = spec.shape if size is None else (spec.shape[0], size, size)
    identity = tuple(part for source in sources for part in source.identity)
    tensors = cached(
        options.cache,
        f"{name}-{split}",
        (identity, tuple(columns.items()), shape) if identity else None,
        lambda: _resized(decode_split(sources, spec.image, spec.shape, spec.label_columns), shape),
    )
    coarse = tensors[spec.coarse] if spec.coarse else None
    return Decoded(tensors["images"], tensors[spec.label], coarse, tuple(source.where for source in sources))


def _resized(tensors: dict[str, Tensor], shape: tuple[int, int, int]) -> dict[str, Tensor]:
    images = tensors["images"]
    if tuple(images.shape[1:]) == shape:
        return tensors
    return {**tensors, "images": functional.interpolate(images, shape[1:], mode="bilinear", antialias=True)}


def load_digits_set(options: Options) -> Task:
    """scikit-learn's digits: 1,797 images of 8 × 8 pixels between 0 and 16, embedded. A fifth is the test set."""
    from sklearn.datasets import load_digits  # takes a second, which other commands can save

    images, labels = load_digits(return_X_y=True)
    whole = Decoded(
        torch.as_tensor(images).to(torch.uint8).view(-1, 1, 8, 8), torch.as_tensor(labels), None, ("scikit-learn",)
    )
    rest, test = hold_out(len(labels), len(labels) // 5, "scikit-learn's digits")
    held = 180 if options.validation_size is None else options.validation_size
    train, validation = hold_out(len(rest), held, "scikit-learn's digits")
    splits = {"train": whole.pick(rest[train]), "validation": whole.pick(rest[validation]), "test": whole.pick(test)}
    return make_task("digits", splits, 10, NOTHING, options, white=16)


def make_task(
    name: str,
    splits: dict[str, Decoded],
    classes: int,
    augmentation: Augmentation,
    options: Options,
    white: int = 255,
    notes: tuple[str, ...] = (),
) -> Task:
    """Limit the training split, add its noise, measure its channels, and describe it all."""
    train = splits["train"]
    families = any_class(classes)
    if train.coarse is not None:
        families = families_of(train.labels, train.coarse, classes, ", ".join(train.sources))
    if options.train_limit is not None:
        train = train.pick(limit(torch.arange(len(train.labels)), options.train_limit))
    train.labels, switched = switch_labels(train.labels, options.label_noise, families, options.seed)
    splits = {**splits, "train": train}
    mean, std = channel_statistics(train.images)
    flatten = bool(options.flatten)
    shape = tuple(train.images.shape[1:])
    description = Description(
        name,
        classes,
        (train.images[0].numel(),) if flatten else shape,
        sizes={key: len(split.labels) for key, split in splits.items()},
        mean=tuple((mean / white).tolist()),
        std=tuple((std / white).tolist()),
        augment=options.augment and bool(augmentation),
        label_noise=options.label_noise,
        switched_labels=switched,
        sources={key: split.sources for key, split in splits.items()},
        notes=notes,
    )
    ready = {key: ImageSplit(s.images, s.labels, mean, std, augmentation, flatten) for key, s in splits.items()}
    return Task(description, ready, options.seed, superclasses=None if train.coarse is None else families)
