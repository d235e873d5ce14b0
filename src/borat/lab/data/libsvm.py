"""The binary classification sets of the LIBSVM collection, from local files, plain or compressed with bzip2 or gzip."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from borat.lab.data.cache import cached
from borat.lab.data.errors import CorruptFileError, LabelError, MissingDataError
from borat.lab.data.noise import any_class, switch_labels
from borat.lab.data.options import Options
from borat.lab.data.source import identify
from borat.lab.data.splits import hold_out, limit
from borat.lab.data.task import Description, Task, VectorSplit

SUFFIXES = ("", ".txt", ".bz2", ".txt.bz2", ".gz")


@dataclass(frozen=True)
class LibsvmSet:
    """The number of features, and the names that the training and test files go by, without their suffix."""

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
    """Load one of :data:`LIBSVM_SETS` as dense vectors with labels 0 and 1, the smaller of the file's being 0.

    Where the folder has no test file, a fifth of the examples is held out instead, and the description says so. A
    tenth of the rest is the validation set.
    """
    spec = LIBSVM_SETS[name]
    path = train_file(name, spec, options.data_dir)
    features, raw = _read(name, path, options)
    classes = torch.unique(raw)
    if len(classes) != 2:
        raise LabelError(f"{path}: expected labels of two classes, found {classes.tolist()[:10]}")
    labels = binary(raw, classes, path)
    test_path = find_file(spec.test, path.parent)
    notes: tuple[str, ...] = ()
    if test_path is None:
        rest, test_rows = hold_out(len(labels), len(labels) // 5, path)
        test = VectorSplit(features[test_rows], labels[test_rows])
        notes = (f"there is no test file: a fifth of {path} is held out",)
    else:
        rest = torch.arange(len(labels))
        test_features, test_raw = _read(name, test_path, options)
        test = VectorSplit(test_features, binary(test_raw, classes, test_path))
    held = len(rest) // 10 if options.validation_size is None else options.validation_size
    train_rows, validation_rows = hold_out(len(rest), held, path)
    train_rows, validation_rows = limit(rest[train_rows], options.train_limit), rest[validation_rows]
    train_labels, switched = switch_labels(labels[train_rows], options.label_noise, any_class(2), options.seed)
    splits = {
        "train": VectorSplit(features[train_rows], train_labels),
        "validation": VectorSplit(features[validation_rows], labels[validation_rows]),
        "test": test,
    }
    description = Description(
        name,
        2,
        (spec.features,),
        sizes={key: len(split) for key, split in splits.items()},
        label_noise=options.label_noise,
        switched_labels=switched,
        sources={"train": (str(path),), "validation": (str(path),), "test": (str(test_path or path),)},
        notes=notes,
    )
    return Task(description, splits, options.seed)


def _read(name: str, path: Path, options: Options) -> tuple[Tensor, Tensor]:
    """A file, or what was kept of it: to unpack and read the text takes longer than to train on it."""

    def read() -> dict[str, Tensor]:
        features, labels = read_file(path, LIBSVM_SETS[name].features)
        return {"features": features, "labels": labels}

    tensors = cached(options.cache, name, identify(path), read)
    return tensors["features"], tensors["labels"]


def train_file(name: str, spec: LibsvmSet, folder: Path | None) -> Path:
    """The training file in ``folder``, or in its subfolder ``libsvm`` or named like the data set."""
    if folder is None:
        raise MissingDataError(
            f"{name} is read from local files: get it from LIBSVM's page and give data_dir, its folder"
        )
    if not folder.is_dir():
        raise MissingDataError(f"the folder {folder} does not exist; it should hold {name}'s LIBSVM files")
    for place in (folder, folder / "libsvm", folder / name):
        if path := find_file(spec.train, place):
            return path
    raise MissingDataError(f"{folder} has none of {', '.join(file_names(spec.train))}; get {name} from LIBSVM's page")


def find_file(stems: tuple[str, ...], folder: Path) -> Path | None:
    """The first file that exists of all names it may have."""
    return next((folder / name for name in file_names(stems) if (folder / name).is_file()), None)


def file_names(stems: tuple[str, ...]) -> list[str]:
    return [stem + suffix for stem in stems for suffix in SUFFIXES]


def read_file(path: Path, features: int) -> tuple[Tensor, Tensor]:
    """The examples as a dense matrix, and the labels as the file has them."""
    from sklearn.datasets import load_svmlight_file  # takes a second, which other commands can save

    try:
        matrix, labels = load_svmlight_file(str(path), n_features=features, dtype=np.float32, zero_based=False)
    except (ValueError, OSError, EOFError) as error:
        raise CorruptFileError(f"{path} is not a complete LIBSVM file of {features} features: {error}") from error
    if not len(labels):
        raise CorruptFileError(f"{path} has no examples")
    if not np.isfinite(matrix.data).all():
        row = int(np.searchsorted(matrix.indptr, np.flatnonzero(~np.isfinite(matrix.data))[0], side="right"))
        raise CorruptFileError(f"{path}, line {row}: a feature is not a finite number")
    return torch.from_numpy(matrix.toarray()), torch.from_numpy(labels)


def binary(labels: Tensor, classes: Tensor, path: Path) -> Tensor:
    """0 for the first and 1 for the second of the two classes."""
    wrong = ~torch.isin(labels, classes)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise LabelError(f"{path}, line {row + 1}: the label {labels[row]:g} is not one of {classes.tolist()}")
    return (labels == classes[1]).long()
