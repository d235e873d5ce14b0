"""User tables: a CSV file of numbers, with a column of classes."""

from __future__ import annotations

import zlib
from dataclasses import replace
from lzma import LZMAError
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from borat.lab.data.errors import DataError
from borat.lab.data.source import find_path
from borat.lab.data.splits import checksum, find_classes, limit, name_classes, number_labels, split_off
from borat.lab.data.task import MemorySplit, Options, Task, make_task

if TYPE_CHECKING:
    import pandas as pd


def load_csv(options: Options) -> Task:
    """Load a table. All columns except that of the classes are features, standardised by the training split.

    A fifth of each class is the test set, a tenth of the remaining examples the validation set.
    """
    path = find_path("csv", options.data_dir, wanted="a CSV file", is_folder=False)
    table = _read(path)
    column = options.label_column or "label"
    if column not in table:
        found = ", ".join(table.columns)
        raise DataError(f"{path} has no column {column!r}, only {found}; set label_column to that of the classes")
    names, features = _labels_and_features(path, table, column)
    classes = find_classes(names, f"{path}: column {column!r}")
    labels = number_labels([(str(path), name) for name in names], classes)
    splits = split_off({"train": MemorySplit(labels, (str(path),), (features,))}, classes, options, path)
    splits["train"] = limit(splits["train"], options.train_limit)
    (train,) = splits["train"].tensors
    mean, std = train.mean(0), train.std(0, correction=0)
    std = torch.where(std > 0.0, std, 1.0)
    for key, split in splits.items():
        standard = (split.tensors[0] - mean) / std  # in float64: float32 cannot tell timestamps apart
        splits[key] = replace(split, tensors=(standard.float(),))
    return make_task(
        "csv",
        splits,
        options,
        input_shape=(features.shape[1],),
        classes=len(classes),
        checksum=checksum(features, labels),
        notes=(name_classes(classes),),
    )


def _read(path: Path) -> pd.DataFrame:
    """Return the fields of a CSV file as strings, indexed by line number."""
    import pandas as pd  # slow to import

    try:
        table = pd.read_csv(path, header=None, dtype=str, na_filter=False, skip_blank_lines=False, encoding="utf-8-sig")
    except (ValueError, EOFError, OSError, LZMAError, zlib.error) as error:
        raise DataError(f"{path} must be a complete CSV file in UTF-8: {str(error).strip()}") from error
    table = table.set_index(table.index + 1)
    names = table.iloc[0].tolist()
    if len(names) < 2:
        raise DataError(f"{path} must have several columns, separated by commas, got one, {names[0]!r}")
    for place, name in enumerate(names, start=1):
        if not name.strip():
            raise DataError(f"{path}: column {place} has no name; drop it if it only numbers the rows")
        if names.count(name) > 1:
            raise DataError(f"{path} has several columns {name!r}; names must be unique")
    is_blank = table.apply(lambda column: column.str.strip() == "").all(axis=1)
    table = table[~is_blank].iloc[1:].set_axis(names, axis=1)
    if table.empty:
        raise DataError(f"{path} has no examples below the names of its columns")
    return table


def _labels_and_features(path: Path, table: pd.DataFrame, column: str) -> tuple[list[Any], Tensor]:
    """Return the labels and the features; labels are integers if all are numbers, otherwise strings."""
    import pandas as pd

    numbers = table.apply(pd.to_numeric, errors="coerce").astype("float64")
    texts, labels = table[column], numbers.pop(column)
    is_text = bool(labels.isna().any())
    is_wrong = texts == "" if is_text else labels % 1 != 0
    if is_wrong.any():
        raise DataError(
            f"{path}, line {is_wrong.idxmax()}: column {column!r} must hold classes, which are whole numbers or "
            f"text, got {texts[is_wrong.idxmax()]!r}"
        )
    for name, is_wrong in (~np.isfinite(numbers)).items():
        if is_wrong.any():
            line = is_wrong.idxmax()
            raise DataError(
                f"{path}, line {line}: column {name!r} must hold finite numbers, got {table[name][line]!r}; "
                "fill it in, or drop the line or the column"
            )
    return list(texts) if is_text else [int(label) for label in labels], torch.tensor(numbers.to_numpy())
