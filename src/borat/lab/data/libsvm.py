"""The binary classification sets of the LIBSVM collection, from local files, plain or compressed with bzip2 or gzip."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from borat.lab.data.cache import cached, identify
from borat.lab.data.errors import CorruptFileError, LabelError, MissingDataError
from borat.lab.data.options import Options
from borat.lab.data.task import MemorySplit, Task, hold_out, limit, make_task

SUFFIXES = ("", ".txt", ".bz2", ".txt.bz2", ".gz")


@dataclass(frozen=True)
class LibsvmSet:
    """Number of features, and possible names of the training and test files without their suffix."""

    features: int
    train: tuple[str, ...]
    test: tuple[str, ...] = ()


LIBSVM_SETS = {
    "mushrooms": LibsvmSet(112, ("mushrooms",)),
    "a9a": LibsvmSet(123, ("a9a",), ("a9a.t",)),
    "w8a": LibsvmSet(300, ("w8a",), ("w8a.t",)),
    "ijcnn1": LibsvmSet(22, ("ijcnn1", "ijcnn1.trn"), ("ijcnn1.t", "ijcnn1.tst")),
}


def load_libsvm(name: str, options: Options) -> Task:
    """Load one of :data:`LIBSVM_SETS` as dense vectors, with 0 for the smaller of the file's two labels and 1.

    If there is no test file, a fifth of the examples is held out, and the description says so. A tenth of the rest is
    the validation set.
    """
    folder = options.data_dir
    if folder is None:
        raise MissingDataError(f"{name} is read from local files: get them from LIBSVM's page and give their data_dir")
    if not folder.is_dir():
        raise MissingDataError(f"the folder {folder} does not exist; it should hold {name}'s LIBSVM files")
    stems, test_stems = LIBSVM_SETS[name].train, LIBSVM_SETS[name].test
    places = (folder, folder / "libsvm", folder / name)
    path = next((file for place in places if (file := find_file(stems, place))), None)
    if path is None:
        names = ", ".join(stem + suffix for stem in stems for suffix in SUFFIXES)
        raise MissingDataError(f"{folder} has none of {names}; get {name} from LIBSVM's page")
    notes: tuple[str, ...] = ()
    train, classes = read_split(name, path, options)
    if test_path := find_file(test_stems, path.parent):
        test, _ = read_split(name, test_path, options, classes)
    else:
        train, test = hold_out(train, len(train) // 5)
        notes = (f"there is no test file: a fifth of {path} is held out",)
    train, validation = hold_out(train, options.validation_size or len(train) // 10)
    splits = {"train": limit(train, options.train_limit), "validation": validation, "test": test}
    return make_task(name, splits, options, input_shape=(LIBSVM_SETS[name].features,), classes=2, notes=notes)


def find_file(stems: tuple[str, ...], folder: Path) -> Path | None:
    """Return the first file that exists of all possible names."""
    return next((path for stem in stems for suffix in SUFFIXES if (path := folder / (stem + suffix)).is_file()), None)


def read_split(name: str, path: Path, options: Options, classes: Tensor | None = None) -> tuple[MemorySplit, Tensor]:
    """Read a file, or its cached tensors, and return the split and the two classes, by default those of the file."""
    tensors = cached(options.cache, name, identify(path), lambda: read_file(path, LIBSVM_SETS[name].features))
    labels = tensors["labels"]
    if classes is None:
        classes = torch.unique(labels)
        if len(classes) != 2:
            raise LabelError(f"{path}: expected labels of two classes, found {classes.tolist()[:10]}")
    wrong = ~torch.isin(labels, classes)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise LabelError(f"{path}, line {row + 1}: the label {labels[row]:g} is not one of {classes.tolist()}")
    return MemorySplit((labels == classes[1]).long(), (str(path),), (tensors["features"],)), classes


def read_file(path: Path, features: int) -> dict[str, Tensor]:
    """Return the examples as a dense matrix, and the labels of the file."""
    from sklearn.datasets import load_svmlight_file  # slow to import

    try:
        matrix, labels = load_svmlight_file(str(path), n_features=features, dtype=np.float32, zero_based=False)
    except (ValueError, OSError, EOFError) as error:
        raise CorruptFileError(f"{path} is not a complete LIBSVM file of {features} features: {error}") from error
    if not len(labels):
        raise CorruptFileError(f"{path} has no examples")
    if not np.isfinite(matrix.data).all():
        row = int(np.searchsorted(matrix.indptr, np.flatnonzero(~np.isfinite(matrix.data))[0], side="right"))
        raise CorruptFileError(f"{path}, line {row}: a feature is not a finite number")
    return {"features": torch.from_numpy(matrix.toarray()), "labels": torch.from_numpy(labels)}
