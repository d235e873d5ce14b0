"""Columns of parquet files and of data sets on the Hugging Face hub, checked before they are read.

`datasets` and `pyarrow` are imported on first use, because that takes a second.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from borat.lab.data.cache import identify
from borat.lab.data.errors import CorruptFileError, DataError, LabelError, MissingDataError, SchemaError

logger = logging.getLogger(__name__)

ROWS = 1000
"""Rows read at once."""

PART = re.compile(r"-(?P<number>\d{5})-of-(?P<count>\d{5})")
"""Numbers of the parts of a split in the hub's file names."""

KINDS = {
    "image": "encoded images (bytes)",
    "integer": "integers",
    "string": "strings",
    "class": "integers or strings",
}
"""Contents that a column can be checked for."""


@dataclass(frozen=True)
class Hub:
    """Place of a data set on the hub, and the hub's name of its validation split."""

    id: str
    config: str | None = None
    validation: str = "validation"

    def split(self, name: str) -> str:
        return self.validation if name == "validation" else name


@dataclass(frozen=True)
class Source:
    """A parquet file or a split on the hub."""

    where: str
    rows: int
    schema: Any
    identity: tuple[tuple[str, int, int], ...]
    read: Callable[[str], Iterator[Any]]
    """Yields the values of a column, as Python objects."""

    def check(self, columns: Mapping[str, str], hint: str = "") -> None:
        """Check that each column exists and holds what :data:`KINDS` calls its kind."""
        for column, kind in columns.items():
            if column not in self.schema.names:
                names = ", ".join(self.schema.names)
                raise SchemaError(f"{self.where} has no column {column!r}, only {names}{hint}")
            if self.schema.names.count(column) > 1:
                raise SchemaError(f"{self.where} has several columns {column!r}")
            found = self.schema.field(column).type
            if not _is_kind(found, kind):
                raise SchemaError(f"{self.where}: column {column!r} must hold {KINDS[kind]}, got {found}{hint}")

    def read_labels(self, column: str, classes: range | None = None) -> list[Any]:
        """Return the labels in a column, each checked to be one of ``classes``."""
        labels = list(self.read(column))
        for row, label in enumerate(labels):
            if label is None:
                raise LabelError(f"{self.where}: column {column!r}, row {row} has no label")
            if classes is not None and label not in classes:
                raise LabelError(
                    f"{self.where}: column {column!r}, row {row}: the label {label} is not in "
                    f"{classes.start} … {classes.stop - 1}"
                )
        return labels

    def read_images(self, column: str) -> Iterator[tuple[str, bytes | None]]:
        """Yield the place of each image, for messages, and its bytes."""
        for row, value in enumerate(self.read(column)):
            yield f"{self.where}: column {column!r}, row {row}", value["bytes"] if isinstance(value, dict) else value


def _is_kind(found: Any, kind: str) -> bool:
    types = library("pyarrow").types
    if kind == "image":
        if types.is_struct(found) and found.get_field_index("bytes") >= 0:
            found = found.field("bytes").type
        return bool(types.is_binary(found) or types.is_large_binary(found))
    if kind == "class":
        found = found.value_type if types.is_dictionary(found) else found  # as pandas writes categories
        return _is_kind(found, "integer") or _is_kind(found, "string")
    if kind == "integer":
        return bool(types.is_integer(found))
    return bool(types.is_string(found) or types.is_large_string(found))


def library(name: str) -> Any:
    """Import `datasets` or a part of `pyarrow`."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"this data set needs {name}: pip install 'borat[lab]'") from error


def open_split(name: str, hub: Hub, split: str, folder: Path | None) -> list[Source]:
    """Open one split of a data set: its files in ``folder``, or its data on the hub if there is no folder."""
    if folder is None:
        return [_open_hub(hub, split)]
    return [open_file(path) for path in find_files(name, hub, split, folder)]


def find_files(name: str, hub: Hub, split: str, folder: Path) -> list[Path]:
    """Return the parquet files of a split in ``folder``, or in one of the subfolders that the hub uses."""
    if not folder.is_dir():
        raise MissingDataError(f"the folder {folder} does not exist; it should hold {name}'s parquet files")
    pattern = "valid*.parquet" if split == "validation" else f"{split}*.parquet"
    places = [folder / sub for sub in dict.fromkeys(("", name, "data", hub.config or "", "plain_text"))]
    for place in places:
        if files := sorted(place.glob(pattern)):
            check_complete(files)
            return files
    raise MissingDataError(
        f"{name} needs {pattern} in one of {', '.join(map(str, places))}; there is none. "
        f"Download the files of the hub's {hub.id!r}, or leave out data_dir to let `datasets` do it"
    )


def check_complete(files: Sequence[Path]) -> None:
    """Check that the files of a split are all the numbered parts of one data set, if the hub's numbers are used."""
    parts = [match for path in files if (match := PART.search(path.name))]
    if not parts:
        return
    names = ", ".join(path.name for path in files)
    counts = {match["count"] for match in parts}
    if len(parts) < len(files) or len(counts) > 1:
        raise DataError(f"{files[0].parent} holds files that do not belong together: {names}; keep one copy")
    missing = set(range(int(counts.pop()))) - {int(match["number"]) for match in parts}
    if missing:
        name = PART.sub(f"-{min(missing):05d}-of-{parts[0]['count']}", parts[0].string)
        raise MissingDataError(f"{files[0].parent / name} is missing; there is only {names}")


def open_file(path: Path) -> Source:
    """Open a parquet file; a truncated one is detected here, before training."""
    try:
        with library("pyarrow.parquet").ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (OSError, ValueError) as error:
        raise CorruptFileError(f"{path} is not a complete parquet file: {error}") from error
    if rows == 0:
        raise DataError(f"{path} has no rows")
    return Source(str(path), rows, schema, (identify(path),), partial(_read_file, path))


def _read_file(path: Path, column: str) -> Iterator[Any]:
    try:
        with library("pyarrow.parquet").ParquetFile(path) as file:
            yield from _values(file.iter_batches(ROWS, columns=[column]), column)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())  # pyarrow's may span several lines
        raise CorruptFileError(f"{path}: column {column!r} is damaged: {reason}") from error


def _values(tables: Iterable[Any], column: str) -> Iterator[Any]:
    for table in tables:
        yield from table.column(column).to_pylist()


def _open_hub(hub: Hub, split: str) -> Source:
    data = load_from_hub(hub, split)
    identity = tuple(identify(Path(file["filename"])) for file in data.cache_files)

    def read(column: str) -> Iterator[Any]:
        return _values(data.select_columns([column]).with_format("arrow").iter(batch_size=ROWS), column)

    return Source(f"hub {hub.id!r}, split {hub.split(split)!r}", len(data), data.features.arrow_schema, identity, read)


def load_from_hub(hub: Hub, split: str, *, streaming: bool = False) -> Any:
    """Load a data set from the hub, or from `datasets`' cache if it has been downloaded before."""
    try:
        builder = library("datasets").load_dataset_builder(hub.id, hub.config)
        size = readable_size(builder.info.download_size)
        if streaming:
            logger.info(f"streaming {hub.id} from the hub while training: {size} for each pass over all its splits")
            return builder.as_streaming_dataset(split=hub.split(split))
        if not Path(builder.cache_dir).is_dir():
            logger.info(f"downloading {hub.id} from the hub, once: {size}, cached in {builder.cache_dir}")
        builder.download_and_prepare()
        return builder.as_dataset(split=hub.split(split))
    except (OSError, ValueError, RuntimeError) as error:
        raise MissingDataError(
            f"cannot load {hub.id!r}, split {hub.split(split)!r}, from the hub: {error}. "
            "Without a connection, give data_dir, a folder of its parquet files"
        ) from error


def readable_size(size: int | None) -> str:
    """
    >>> readable_size(161_000_000), readable_size(12_500), readable_size(None)
    ('161 MB', '12.5 kB', 'unknown size')
    """
    if not size:
        return "unknown size"
    power = min(int(math.log(size, 1000)), 4)
    return f"{size / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"
