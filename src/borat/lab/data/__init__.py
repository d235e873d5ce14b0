"""Data sets by name: ``load("cifar100", data_dir=...)`` gives splits in memory and batches made on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from borat.lab.data.characters import load_characters, load_topics
from borat.lab.data.csv import load_csv
from borat.lab.data.errors import (
    CorruptFileError,
    DataError,
    LabelError,
    MissingDataError,
    SchemaError,
    UnknownDatasetError,
)
from borat.lab.data.folders import load_images
from borat.lab.data.images import IMAGE_SETS, load_digits_set, load_image_set
from borat.lab.data.libsvm import LIBSVM_SETS, load_libsvm
from borat.lab.data.options import COMMON, Options
from borat.lab.data.repeat_copy import load_repeat_copy
from borat.lab.data.stream import load_imagenet
from borat.lab.data.synthetic import load_least_squares, load_separable
from borat.lab.data.task import Batch, Description, Split, Task
from borat.lab.data.text import load_snli
from borat.lab.files import pick

__all__ = [
    "DATASETS",
    "FROM_HUB",
    "Batch",
    "CorruptFileError",
    "DataError",
    "Description",
    "LabelError",
    "MissingDataError",
    "SchemaError",
    "Split",
    "Task",
    "UnknownDatasetError",
    "find_loader",
    "load",
]


@dataclass(frozen=True)
class Loader:
    """How to load a data set, and the options that only it and its like have."""

    load: Callable[[Options], Task]
    options: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    """The only families of models for such data; without one, those for images or vectors."""


IMAGE_OPTIONS = ("flatten", "image_size", "image_column", "label_column")
DATASETS: dict[str, Loader] = {
    "digits": Loader(load_digits_set, ("flatten",)),
    **{name: Loader(partial(load_image_set, name), IMAGE_OPTIONS) for name in IMAGE_SETS},
    "imagenet": Loader(load_imagenet, ("image_size",)),
    "snli": Loader(load_snli, ("train_split", "glove"), models=("infersent",)),
    "images": Loader(load_images, IMAGE_OPTIONS),
    "csv": Loader(load_csv, ("label_column",)),
    "text": Loader(load_characters, ("window",), models=("gpt", "ngram")),
    "topics": Loader(load_topics, ("window",), models=("gpt", "ngram")),
    **{name: Loader(partial(load_libsvm, name)) for name in LIBSVM_SETS},
    "least_squares": Loader(load_least_squares, ("examples", "features")),
    "separable": Loader(load_separable, ("examples", "features")),
    "repeat_copy": Loader(load_repeat_copy, ("examples",), models=("dnc",)),
}
"""The known data sets."""

FROM_HUB = (*IMAGE_SETS, "imagenet", "snli")
"""Those that the hub is asked for where no folder of files is given."""

OWN = ("images", "csv", "text")
"""Those that are a user's own, wherever they lie."""


def load(
    name: str = "digits",
    *,
    data_dir: str | Path | None = None,
    cache_dir: str | Path | None = None,
    label_noise: float = 0.0,
    seed: int = 0,
    train_limit: int | None = None,
    validation_size: int | None = None,
    augment: bool = True,
    flatten: bool | None = None,
    train_split: str | None = None,
    glove: str | Path | None = None,
    image_size: int | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    window: int | None = None,
    examples: int | None = None,
    features: int | None = None,
) -> Task:
    """Load a data set, whole and checked: what is wrong with it is raised here and not in the middle of training.

    Args:
        name: one of :data:`DATASETS`.
        data_dir: a folder of its files, as the hub has them: ``train*.parquet``, ``test*.parquet``,
            ``valid*.parquet``, ``extra*.parquet``; for the LIBSVM sets, of their text files. Without it the hub. For
            ``images`` a folder of class folders or parquet files, for ``csv`` and ``text`` a file.
        cache_dir: where decoded images are kept; ``$BORAT_CACHE`` or ``~/.cache/borat`` unless given.
        label_noise: the probability with which a training label is switched to another class, of the same super-class
            where there are such. How many were is in the description.
        seed: of the label noise, of synthetic problems, and of the batches unless they are given another. Which
            examples are held out for validation does not depend on it.
        train_limit: at most this many training examples, chosen at random, always the same.
        validation_size: how many training examples to hold out for validation, instead of the paper's number.
        augment: whether to augment training images as is usual for this data set: flips and crops padded by 4 pixels
            for CIFAR and Tiny ImageNet, flips and crops for ImageNet, nothing for the others.
        flatten: images as vectors.
        train_split: for SNLI: ``"validation"`` to train on that smaller split.
        glove: for SNLI: a text file of word vectors.
        image_size: the height and width to bring images to; for ImageNet: the size of the crops, 224 unless given.
        image_column: of parquet files: the column of the images, where it is not the hub's, or ``image``.
        label_column: of parquet files and ``csv``: that of the classes, where it is not the hub's, or ``label``; with
            CIFAR-100's ``coarse_label`` its twenty super-classes are the classes.
        window: for text: the characters of an example, 64 unless given.
        examples: of a synthetic problem's training split, 1,000 unless given.
        features: of a synthetic problem, 20 unless given.

    Raises:
        MissingDataError: a file or folder is missing, or the hub cannot be reached. It is a FileNotFoundError.
        DataError: the data cannot be used; subclasses say why. It is a ValueError.

    Example:
        >>> task = load("digits", flatten=True)
        >>> task.description.sizes
        {'train': 1258, 'validation': 180, 'test': 359}
        >>> batch = next(task.batches("train", 32))
        >>> batch.inputs[0].shape, batch.labels.shape
        (torch.Size([32, 64]), torch.Size([32]))
    """
    loader = find_loader(name)
    options = Options(
        data_dir=_path(data_dir),
        cache_dir=_path(cache_dir),
        label_noise=label_noise,
        seed=seed,
        train_limit=train_limit,
        validation_size=validation_size,
        augment=augment,
        flatten=flatten,
        train_split=train_split,
        glove=_path(glove),
        image_size=image_size,
        image_column=image_column,
        label_column=label_column,
        window=window,
        examples=examples,
        features=features,
    )
    for field in fields(Options):
        if field.name not in (*COMMON, *loader.options) and getattr(options, field.name) is not None:
            raise ValueError(f"{field.name} does not apply to {name}")
    task = loader.load(options)
    for split, size in task.description.sizes.items():
        if size == 0:
            source = ", ".join(task.description.sources.get(split, ()))
            raise DataError(f"{name} has no examples for the split {split!r} in {source or 'its files'}")
    return task


def find_loader(name: str) -> Loader:
    """How to load the data set of this name."""
    try:
        return DATASETS[pick("data set", name, DATASETS)]
    except ValueError as error:
        raise UnknownDatasetError(str(error)) from None


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path).expanduser()
