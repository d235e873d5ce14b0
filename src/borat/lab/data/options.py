"""Options of data sets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from borat._checks import check_count, check_flag, is_number

COMMON = ("data_dir", "cache_dir", "label_noise", "seed", "train_limit", "validation_size", "augment")


def default_cache() -> Path:
    """``$BORAT_CACHE``, or ``~/.cache/borat``."""
    return Path(os.environ.get("BORAT_CACHE") or Path.home() / ".cache" / "borat")


@dataclass(frozen=True)
class Options:
    """The options of :func:`borat.lab.data.load`, checked.

    Args:
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
    """

    data_dir: Path | None = None
    cache_dir: Path | None = None
    label_noise: float = 0.0
    seed: int = 0
    train_limit: int | None = None
    validation_size: int | None = None
    augment: bool = True
    flatten: bool | None = None
    train_split: str | None = None
    glove: Path | None = None
    image_size: int | None = None
    image_column: str | None = None
    label_column: str | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        for name in ("data_dir", "cache_dir", "glove"):
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, Path(path).expanduser())
        if not is_number(self.label_noise) or not 0.0 <= self.label_noise <= 1.0:
            raise ValueError(f"label_noise must be a probability between 0 and 1, got {self.label_noise!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"seed must be an integer of at least 0, got {self.seed!r}")
        for name in ("train_limit", "validation_size", "image_size", "window"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_flag("augment", self.augment)

    @property
    def cache(self) -> Path:
        return self.cache_dir or default_cache()
