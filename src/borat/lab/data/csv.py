"""A table of a user's own: a CSV file of numbers, with a column of classes."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from borat.lab.data.errors import CorruptFileError, DataError, LabelError, SchemaError
from borat.lab.data.options import Options
from borat.lab.data.own import checksum, find_classes, find_path, number_labels, share_out
from borat.lab.data.splits import limit
from borat.lab.data.task import Task, vector_task

if TYPE_CHECKING:
    import pandas as pd

LABEL = "label"


def load_csv(options: Options) -> Task:
    """Every column but that of the classes is a feature, standardised by its mean and deviation in the training split.

    A fifth of each class is the test set, and a tenth of the rest the validation set.
    """
    path = find_path("csv", options.data_dir, wanted="a CSV file", is_folder=False)
    table = _read(path)
    column = options.label_column or LABEL
    if column not in table:
        raise SchemaError(
            f"{path} has no column {column!r}, only {', '.join(map(str, table.columns))}; "
            "say with label_column which one holds the classes"
        )
    names = _classes(path, table[column])
    features = _features(path, table.drop(columns=column))
    classes = find_classes(names, f"{path}: column {column!r}")
    labels = number_labels(names, classes, lambda row: f"{path}, line {table.index[row]}")
    rows = share_out(labels, classes, (), options, path)
    scaled = _standardise(features, limit(rows["train"], options.train_limit))
    return vector_task(
        *("csv", scaled, labels, rows, options),
        classes=len(classes),
        sources=(str(path),),
        checksum=checksum(features, labels),
        notes=(f"classes in the order of their numbers: {', '.join(map(str, classes))}",),
    )


def _read(path: Path) -> pd.DataFrame:
    """The table, its rows called by their lines in the file."""
    import pandas as pd  # slow to import, and not needed elsewhere

    text = _text(path)
    lines = _lines(path, text)
    try:
        table = pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""])  # NA may be the name of a class
    except ValueError as error:
        raise CorruptFileError(f"{path} is not a CSV file: {str(error).strip()}") from error
    if table.empty:
        raise DataError(f"{path} has no examples below the names of its columns")
    if len(table.columns) < 2:
        raise SchemaError(
            f"{path} must have several columns with commas between them, got one, {str(table.columns[0])!r}"
        )
    return table.set_axis(lines[: len(table)])


def _text(path: Path) -> str:
    opened: Any = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}.get(path.suffix, open)
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            text: str = file.read()
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{path} must be text in UTF-8: {error}") from error
    except (EOFError, lzma.LZMAError, zlib.error) as error:
        raise CorruptFileError(f"{path} is not a complete {path.suffix} file: {error}") from error
    if not text.strip():
        raise DataError(f"{path} is empty; its first line must name the columns")
    return text


def _lines(path: Path, text: str) -> list[int]:
    """The lines where examples end. Each must have a field for every column, and every column a name of its own: what
    is left over, pandas would take for names of the rows."""
    lines, names = [], None
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in rows:
            if not "".join(row).strip() and len(row) < 2:  # a blank line
                continue
            if names is None:
                names = row
            elif len(row) != len(names):
                raise SchemaError(
                    f"{path}, line {rows.line_num}: {len(row)} fields, but the first line names {len(names)} columns"
                )
            else:
                lines.append(rows.line_num)
    except csv.Error as error:
        raise CorruptFileError(f"{path} is not a CSV file: line {rows.line_num}: {error}") from error
    for place, name in enumerate(names or (), start=1):
        if not name.strip():
            raise SchemaError(
                f"{path}: column {place} has no name. If it numbers the rows, leave it out: it would be learned from"
            )
        if (names or []).count(name) > 1:
            raise SchemaError(f"{path} has several columns {name!r}; each needs a name of its own")
    return lines


def _classes(path: Path, column: pd.Series[Any]) -> list[Any]:
    """Whole numbers or text."""
    if column.isna().any():
        raise LabelError(f"{path}, line {_line(column.isna())}: column {column.name!r} has no class")
    if column.dtype.kind == "f":
        broken = column % 1 != 0
        if broken.any():
            value = column[broken].iloc[0]
            raise LabelError(
                f"{path}, line {_line(broken)}: column {column.name!r} must hold classes, which are whole numbers or "
                f"text, got {value:g}"
            )
        column = column.astype("int64")
    return list(column.astype(str) if column.dtype.kind == "O" else column.tolist())


def _features(path: Path, table: pd.DataFrame) -> Tensor:
    import pandas as pd

    columns = []
    for name in table.columns:
        values = pd.to_numeric(table[name], errors="coerce").astype("float64")
        wrong = ~np.isfinite(values)
        if wrong.any():
            found = table[name][wrong].iloc[0]
            got = "nothing" if pd.isna(found) else repr(str(found))
            raise SchemaError(
                f"{path}, line {_line(wrong)}: column {name!r} must hold finite numbers, got {got}; "
                "fill it in, or leave out the line or the column"
            )
        columns.append(values.to_numpy())
    return torch.from_numpy(np.stack(columns, 1))


def _line(where: pd.Series[bool]) -> int:
    """The first line of the file that a condition is true of."""
    return int(where.index[where.to_numpy().argmax()])


def _standardise(features: Tensor, train: Tensor) -> Tensor:
    """In float64 until they are small: times in seconds are all the same in float32."""
    mean, std = features[train].mean(0), features[train].std(0, correction=0)
    return ((features - mean) / torch.where(std > 0.0, std, 1.0)).float()
