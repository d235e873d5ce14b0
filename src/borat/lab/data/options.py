"""Options of data sets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from borat._checks import check_count, check_flag, is_number

COMMON = ("data_dir", "cache_dir", "seed", "train_limit", "augment")
"""Options of all data sets."""


@dataclass(frozen=True)
class Options:
    """The options of :func:`borat.lab.data.load`, checked.

    Args:
        data_dir: a folder of parquet files, as on the hub: ``train*.parquet``, ``test*.parquet``, ``valid*.parquet``,
            ``extra*.parquet``; by default the hub itself. For the LIBSVM sets a folder of their text files, for
            ``images`` a folder of class folders or parquet files, for ``csv`` and ``text`` a file.
        cache_dir: folder for decoded data; ``$BORAT_CACHE`` or ``~/.cache/borat`` by default.
        label_noise: probability of switching a training label to another class, of the same super-class if there are
            such. The description counts the switched labels.
        seed: of the label noise, of synthetic problems, and by default of the batches. The examples held out for
            validation do not depend on it.
        train_limit: largest number of training examples, a random subset that is the same in every run.
        validation_size: number of training examples held out for validation; by default as in the paper.
        augment: augment training images: flips and crops padded by 4 pixels for CIFAR and Tiny ImageNet, flips and
            crops for ImageNet, nothing for the others.
        flatten: return images as vectors.
        train_split: for SNLI, ``"validation"`` trains on that smaller split.
        glove: for SNLI, a text file of word vectors.
        image_size: height and width to scale images to; for ImageNet, the size of the crops, 224 by default.
        image_column: column of the images in parquet files; by default the hub's, or ``image``.
        label_column: column of the classes in parquet files and ``csv``; by default the hub's, or ``label``. With
            CIFAR-100's ``coarse_label`` its twenty super-classes are the classes.
        window: for text, the number of characters in an example, 64 by default.
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
        check_count("seed", self.seed, least=0)
        for name in ("train_limit", "validation_size", "image_size", "window"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_flag("augment", self.augment)

    @property
    def cache(self) -> Path:
        """Folder for decoded data."""
        return self.cache_dir or Path(os.environ.get("BORAT_CACHE") or Path.home() / ".cache" / "borat")
