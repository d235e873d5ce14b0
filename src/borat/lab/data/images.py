"""Image data sets that fit into memory: decoded once, kept as bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from borat.lab.data.augment import Augmentation, channel_statistics, normalise
from borat.lab.data.cache import cached
from borat.lab.data.errors import DataError, LabelError
from borat.lab.data.options import Options
from borat.lab.data.pixels import decode_images
from borat.lab.data.sampling import Purpose, make_generator
from borat.lab.data.source import Hub, Source, open_split
from borat.lab.data.task import MemorySplit, Plan, Task, hold_out, limit, make_task

NO_AUGMENTATION = Augmentation()
FLIPS_AND_CROPS = Augmentation(padding=4, flips=True)
NAME_COLUMNS = "; give image_column and label_column to read others"


@dataclass(eq=False)
class ImageSplit(MemorySplit):
    """Images as bytes, (examples, channels, height, width): augmented and normalised batch by batch."""

    images: Tensor
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    augmentation: Augmentation = NO_AUGMENTATION
    flatten: bool = False

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple((self.images[0].flatten() if self.flatten else self.images[0]).shape)

    def draw(self, count: int, number: int, plan: Plan) -> Any:
        if not plan.augment:
            return None
        return self.augmentation.draw(count, make_generator(Purpose.AUGMENTATION, plan.seed, plan.epoch, number))

    def inputs(self, indices: Tensor, draws: Any) -> tuple[Tensor, ...]:
        images = self.images[indices]
        if draws is not None:
            images = self.augmentation.apply(images, draws.to(images.device))
        images = normalise(images, self.mean, self.std)
        return (images.flatten(1) if self.flatten else images,)


@dataclass(frozen=True)
class ImageSet:
    """An image data set: its place on the hub, its contents, and its use in the paper.

    ``held_out`` training examples make the validation set. If it is None, the data set has one, and the labels of its
    test set are not public. With ``extra``, a split of that name joins the training set.
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
    augmentation: Augmentation = NO_AUGMENTATION


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


def load_image_set(name: str, options: Options) -> Task:
    """Load one of :data:`IMAGE_SETS`."""
    spec = IMAGE_SETS[name]
    spec = dataclasses.replace(spec, image=options.image_column or spec.image, label=options.label_column or spec.label)
    if spec.label == spec.coarse:  # classify by super-class
        spec = dataclasses.replace(spec, classes=spec.coarse_classes, coarse=None)
    train, families = _read(name, spec, "train", options)
    if spec.held_out is None:
        if options.validation_size is not None:
            raise DataError(f"{name} has a validation set of its own; leave out validation_size")
        splits = {"train": train, "validation": _read(name, spec, "validation", options)[0]}
        notes: tuple[str, ...] = ("the labels of the test set are not public",)
    else:
        train, validation = hold_out(train, options.validation_size or spec.held_out)
        splits = {"train": train, "validation": validation, "test": _read(name, spec, "test", options)[0]}
        notes = ()
    if spec.extra:
        extra, _ = _read(name, spec, "extra", options)
        splits["train"] = ImageSplit(
            torch.cat([train.labels, extra.labels]),
            train.sources + extra.sources,
            torch.cat([train.images, extra.images]),
        )
    return make_image_task(
        name, splits, options, classes=spec.classes, augmentation=spec.augmentation, families=families, notes=notes
    )


def _read(name: str, spec: ImageSet, split: str, options: Options) -> tuple[ImageSplit, Tensor | None]:
    """Return a split, and the super-class of each class if there are such."""
    sources = open_split(name, spec.hub, split, options.data_dir)
    labels = {spec.label: spec.classes, **({spec.coarse: spec.coarse_classes} if spec.coarse else {})}
    for source in sources:
        source.check({spec.image: "image", **dict.fromkeys(labels, "integer")}, NAME_COLUMNS)
    fine, *coarse = (
        torch.tensor([label for source in sources for label in source.read_labels(column, range(classes))])
        for column, classes in labels.items()
    )
    where = tuple(source.where for source in sources)
    images = _decode(f"{name}-{split}", sources, spec, options)
    return ImageSplit(fine, where, images), find_families(fine, coarse[0], spec.classes, where) if coarse else None


def _decode(name: str, sources: Sequence[Source], spec: ImageSet, options: Options) -> Tensor:
    channels, *pixels = spec.shape
    size = [options.image_size or side for side in pixels]

    def decode() -> dict[str, Tensor]:
        encoded = (image for source in sources for image in source.read_images(spec.image))
        count, mode = sum(source.rows for source in sources), "L" if channels == 1 else "RGB"
        images = decode_images(encoded, count, mode=mode, pixels=(pixels[0], pixels[1]))
        if size != pixels:
            images = functional.interpolate(images, size, mode="bilinear", antialias=True)
        return {"images": images}

    identity = tuple(part for source in sources for part in source.identity)
    return cached(options.cache, name, identity and (identity, spec.image, spec.shape, size), decode)["images"]


def find_families(fine: Tensor, coarse: Tensor, classes: int, where: Sequence[str]) -> Tensor:
    """Return the super-class of each class, from examples that have both labels."""
    families = torch.full((classes,), -1)
    families[fine] = coarse
    if not torch.equal(families[fine], coarse):
        row = int((families[fine] != coarse).nonzero()[0])
        raise LabelError(f"{', '.join(where)}: class {int(fine[row])} appears with more than one super-class")
    families[families < 0] = int(coarse.max()) + 1  # classes without examples
    return families


def load_digits(options: Options) -> Task:
    """Load scikit-learn's digits: 1,797 images of 8 × 8 pixels between 0 and 16. A fifth is the test set."""
    from sklearn import datasets  # slow to import

    images, labels = datasets.load_digits(return_X_y=True)
    pixels = torch.as_tensor(images).to(torch.uint8).view(-1, 1, 8, 8)
    rest, test = hold_out(ImageSplit(torch.as_tensor(labels), ("scikit-learn",), pixels), len(labels) // 5)
    train, validation = hold_out(rest, options.validation_size or 180)
    splits = {"train": train, "validation": validation, "test": test}
    return make_image_task("digits", splits, options, classes=10, white=16)


def make_image_task(
    name: str,
    splits: Mapping[str, ImageSplit],
    options: Options,
    *,
    augmentation: Augmentation = NO_AUGMENTATION,
    white: int = 255,
    **about: Any,
) -> Task:
    """Return a task of images, normalised by the statistics of the training split; see :func:`make_task`."""
    train = limit(splits["train"], options.train_limit)
    mean, std = channel_statistics(train.images)
    common: dict[str, Any] = {"mean": mean.tolist(), "std": std.tolist(), "flatten": bool(options.flatten)}
    return make_task(
        name,
        {
            key: dataclasses.replace(split, augmentation=augmentation, **common)
            for key, split in {**splits, "train": train}.items()
        },
        options,
        mean=tuple((mean / white).tolist()),
        std=tuple((std / white).tolist()),
        augment=options.augment and bool(augmentation),
        **about,
    )
