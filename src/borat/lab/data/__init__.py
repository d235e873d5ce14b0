"""Data sets by name: ``load("cifar100", data_dir=...)`` gives splits in memory and batches made on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from borat.lab.data.characters import load_characters, load_topics
from borat.lab.data.csv import load_csv
from borat.lab.data.errors import DataError
from borat.lab.data.folders import load_images
from borat.lab.data.images import IMAGE_SETS, load_digits, load_image_set
from borat.lab.data.libsvm import LIBSVM_SETS, load_libsvm
from borat.lab.data.options import COMMON, Options
from borat.lab.data.snli import load_snli
from borat.lab.data.stream import load_imagenet
from borat.lab.data.synthetic import load_repeat_copy, load_separable
from borat.lab.data.task import Batch, Description, Task
from borat.lab.files import pick

__all__ = ["DATASETS", "FROM_HUB", "OWN", "Batch", "Description", "Loader", "Task", "find_loader", "load"]


@dataclass(frozen=True)
class Loader:
    """Function that loads a data set, and the options that only some data sets have."""

    load: Callable[[Options], Task]
    options: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    """Families of models for these data; empty for all models of images or vectors."""


IMAGE_OPTIONS = ("label_noise", "validation_size", "flatten", "image_size", "image_column", "label_column")
TEXT_MODELS = ("gpt", "ngram")
DATASETS: dict[str, Loader] = {
    "digits": Loader(load_digits, ("label_noise", "validation_size", "flatten")),
    **{name: Loader(partial(load_image_set, name), IMAGE_OPTIONS) for name in IMAGE_SETS},
    "imagenet": Loader(load_imagenet, ("image_size",)),
    "snli": Loader(load_snli, ("label_noise", "validation_size", "train_split", "glove"), models=("infersent",)),
    "images": Loader(load_images, IMAGE_OPTIONS),
    "csv": Loader(load_csv, ("label_noise", "validation_size", "label_column")),
    "text": Loader(load_characters, ("validation_size", "window"), models=TEXT_MODELS),
    "topics": Loader(load_topics, ("validation_size", "window"), models=TEXT_MODELS),
    **{name: Loader(partial(load_libsvm, name), ("label_noise", "validation_size")) for name in LIBSVM_SETS},
    "separable": Loader(load_separable, ("label_noise", "validation_size")),
    "repeat_copy": Loader(load_repeat_copy, ("validation_size",), models=("dnc",)),
}
"""The known data sets."""

FROM_HUB = (*IMAGE_SETS, "imagenet", "snli")
"""Data sets that are loaded from the hub if no folder is given."""

OWN = ("images", "csv", "text")
"""Data sets that a user provides."""


def load(name: str = "digits", **options: Any) -> Task:
    """Load and check a data set; errors are raised here, not during training.

    Args:
        name: one of :data:`DATASETS`.
        **options: those of :class:`~borat.lab.data.options.Options` that apply to it.

    Raises:
        MissingDataError: a file or folder is missing, or the hub cannot be reached. It is a FileNotFoundError.
        DataError: the data cannot be used; the subclasses in :mod:`borat.lab.data.errors` say why. It is a ValueError.

    Example:
        >>> task = load("digits", flatten=True)
        >>> task.description.sizes
        {'train': 1258, 'validation': 180, 'test': 359}
        >>> batch = next(task.batches("train", 32))
        >>> batch.inputs[0].shape, batch.labels.shape
        (torch.Size([32, 64]), torch.Size([32]))
    """
    loader = find_loader(name)
    for key, value in options.items():
        pick("option", key, [field.name for field in fields(Options)])
        if key not in (*COMMON, *loader.options) and value != getattr(Options, key):
            raise ValueError(f"{key} does not apply to {name}")
    task = loader.load(Options(**options))
    for split, size in task.description.sizes.items():
        if size == 0:
            sources = ", ".join(task.description.sources[split])
            raise DataError(f"{name} has no examples for the split {split!r} in {sources}")
    return task


def find_loader(name: str) -> Loader:
    """Return the loader of a data set."""
    return DATASETS[pick("data set", name, DATASETS)]
