"""Binary classification sets of the LIBSVM collection, from local files: plain text, bzip2 or gzip."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from borat.lab.data.cache import cached, identify
from borat.lab.data.errors import DataError, MissingDataError
from borat.lab.data.source import find_path
from borat.lab.data.splits import hold_out, limit
from borat.lab.data.task import MemorySplit, Options, Task, make_task

TRAIN, TEST = ("", ".trn"), (".t", ".tst")
"""Endings of the names of training and test files, before a suffix."""
SUFFIXES = ("", ".txt", ".bz2", ".txt.bz2", ".gz")


class LibsvmSet(NamedTuple):
    """Number of features, and the labels of the two classes in the files."""

    features: int
    labels: tuple[int, int] = (-1, 1)


LIBSVM_SETS = {
    "mushrooms": LibsvmSet(112, labels=(1, 2)),
    "a9a": LibsvmSet(123),
    "w8a": LibsvmSet(300),
    "ijcnn1": LibsvmSet(22),
}


def load_libsvm(name: str, options: Options) -> Task:
    """Load one of :data:`LIBSVM_SETS` as dense vectors, with the labels 0 and 1.

    Without a test file, a fifth of the examples is held out for the test, which a note in the description states. A
    tenth of the remaining examples is the validation set.
    """
    folder = find_path(name, options.data_dir, wanted="a folder of its files from LIBSVM's page")
    spec = LIBSVM_SETS[name]
    places = (folder, folder / "libsvm", folder / name)
    path = next((file for place in places if (file := find_file(place, name, TRAIN))), None)
    if path is None:
        names = ", ".join(name + ending + suffix for ending in TRAIN for suffix in SUFFIXES)
        raise MissingDataError(f"{folder} has none of {names}; download {name} from LIBSVM's page")
    train = read_split(name, path)
    if test_path := find_file(path.parent, name, TEST):
        test, note = read_split(name, test_path), ""
    else:
        train, test = hold_out(train, len(train) // 5)
        note = f"there is no test file: a fifth of {path} is held out"
    train, validation = hold_out(train, options.validation_size or len(train) // 10)
    splits = {"train": limit(train, options.train_limit), "validation": validation, "test": test}
    return make_task(name, splits, options, input_shape=(spec.features,), classes=2, notes=(note,) if note else ())


def find_file(folder: Path, name: str, endings: tuple[str, ...]) -> Path | None:
    """Return the first existing file among the possible names."""
    paths = (folder / (name + ending + suffix) for ending in endings for suffix in SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def read_split(name: str, path: Path) -> MemorySplit:
    """Read a file, or load its tensors from the cache."""
    spec = LIBSVM_SETS[name]
    tensors = cached(name, identify(path), lambda: read_file(path, spec.features))
    for row, label in enumerate(tensors["labels"].tolist(), start=1):
        if label not in spec.labels:
            raise DataError(f"{path}, line {row}: the label {label:g} is not one of {spec.labels}")
    return MemorySplit((tensors["labels"] == spec.labels[1]).long(), (str(path),), (tensors["features"],))


def read_file(path: Path, features: int) -> dict[str, Tensor]:
    """Return the examples of a file as a dense matrix, and their labels."""
    from sklearn.datasets import load_svmlight_file  # slow to import

    try:
        matrix, labels = load_svmlight_file(str(path), n_features=features, dtype=np.float32, zero_based=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} is not a complete LIBSVM file of {features} features: {error}") from error
    if not len(labels):
        raise DataError(f"{path} has no examples")
    if not np.isfinite(matrix.data).all():
        row = int(np.searchsorted(matrix.indptr, np.flatnonzero(~np.isfinite(matrix.data))[0], side="right"))
        raise DataError(f"{path}, line {row}: a feature is not a finite number")
    return {"features": torch.from_numpy(matrix.toarray()), "labels": torch.from_numpy(labels)}
