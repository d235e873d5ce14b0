"""Data sets by name: ``load("cifar100", data_dir=...)`` returns splits in memory, with batches on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from borat.lab.config import RunConfig
from borat.lab.data.characters import load_characters, load_stdlib, load_topics
from borat.lab.data.csv import load_csv
from borat.lab.data.errors import DataError
from borat.lab.data.folders import load_images
from borat.lab.data.images import IMAGE_SETS, load_digits, load_image_set
from borat.lab.data.libsvm import LIBSVM_SETS, load_libsvm
from borat.lab.data.snli import load_snli
from borat.lab.data.stream import load_imagenet
from borat.lab.data.synthetic import load_repeat_copy, load_separable
from borat.lab.data.task import Batch, Description, Options, Task
from borat.lab.files import pick

__all__ = ["DATASETS", "FROM_HUB", "KEYS", "OWN", "Batch", "Description", "Loader", "Options", "Task"]
__all__ += ["load", "load_for"]


@dataclass(frozen=True)
class Loader:
    """Function that loads a data set, and the options and models that suit it."""

    load: Callable[[Options], Task]
    options: tuple[str, ...] = ()
    """Configuration keys that apply to the data set, besides those in ``COMMON``."""
    models: tuple[str, ...] = ()
    """Model families for these data; empty if all models of images or vectors apply."""


COMMON = ("seed", "train_limit", "augment")
"""Configuration keys that apply to all data sets."""
IMAGE_OPTIONS = ("label_noise", "validation_size", "image_size", "image_column", "label_column")
TEXT_MODELS = ("gpt", "ngram")
DATASETS: dict[str, Loader] = {
    "digits": Loader(load_digits, ("label_noise", "validation_size")),
    **{name: Loader(partial(load_image_set, name), IMAGE_OPTIONS) for name in IMAGE_SETS},
    "imagenet": Loader(load_imagenet, ("image_size",)),
    "snli": Loader(load_snli, ("label_noise", "validation_size", "train_split", "glove"), models=("infersent",)),
    "images": Loader(load_images, IMAGE_OPTIONS),
    "csv": Loader(load_csv, ("label_noise", "validation_size", "label_column")),
    "text": Loader(load_characters, ("validation_size", "window"), models=TEXT_MODELS),
    "topics": Loader(load_topics, ("validation_size", "window"), models=TEXT_MODELS),
    "stdlib": Loader(load_stdlib, ("validation_size", "window"), models=TEXT_MODELS),
    **{name: Loader(partial(load_libsvm, name), ("label_noise", "validation_size")) for name in LIBSVM_SETS},
    "separable": Loader(load_separable, ("label_noise", "validation_size")),
    "repeat_copy": Loader(load_repeat_copy, ("validation_size",), models=("dnc",)),
}
"""The known data sets."""
FROM_HUB = (*IMAGE_SETS, "imagenet", "snli")
"""Data sets that are loaded from the hub if no folder is given."""
OWN = ("images", "csv", "text")
"""Data sets that a user provides."""


KEYS = tuple(dict.fromkeys((*COMMON, *(key for loader in DATASETS.values() for key in loader.options))))
"""Configuration keys that are options of a data set."""


def load(name: str = "digits", *, data_dir: str | Path | None = None, **options: Any) -> Task:
    """Load and check a data set; errors are raised here, not during training.

    Args:
        name: one of :data:`DATASETS`.
        data_dir: a folder of parquet files, as on the hub: ``train*.parquet``, ``test*.parquet``, ``valid*.parquet``,
            ``extra*.parquet``; by default the hub itself. For the LIBSVM sets a folder of their text files, for
            ``images`` a folder of class folders or parquet files, for ``csv`` and ``text`` a file.
        **options: keys of :class:`~borat.lab.config.RunConfig` that apply to the data set. The seed determines label
            noise, synthetic problems and, by default, the batches; held-out examples and subsets do not depend on it.

    Raises:
        MissingDataError: if a file or folder is missing, or the hub cannot be reached; a FileNotFoundError.
        DataError: if the data cannot be used; a ValueError.

    Example:
        >>> task = load("digits")
        >>> task.description.sizes
        {'train': 1258, 'validation': 180, 'test': 359}
        >>> batch = next(task.batches("train", 32))
        >>> batch.inputs[0].shape, batch.labels.shape
        (torch.Size([32, 1, 8, 8]), torch.Size([32]))
    """
    for key in options:
        pick("option", key, KEYS)
    return load_for(RunConfig(data=name, **options), data_dir)


def load_for(config: RunConfig, data_dir: str | Path | None = None) -> Task:
    """Load the data of a run; see :func:`load`."""
    name, loader = config.data, DATASETS[pick("data set", config.data, DATASETS)]
    for key in KEYS:
        if key not in (*COMMON, *loader.options) and getattr(config, key) != RunConfig.model_fields[key].default:
            raise ValueError(f"{key} does not apply to {name}")
    place = None if data_dir is None else Path(data_dir).expanduser()
    task = loader.load(Options(**config.as_dict(), data_dir=place))
    for split, size in task.description.sizes.items():
        if size == 0:
            sources = ", ".join(task.description.sources[split])
            raise DataError(f"{name} has no examples for the split {split!r} in {sources}")
    return task
