"""Columns of parquet files and of data sets on the Hugging Face hub, checked while they are read."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module  # datasets and pyarrow are slow to import
from pathlib import Path
from typing import Any

from borat.lab.data.cache import identify
from borat.lab.data.errors import DataError, MissingDataError

logger = logging.getLogger(__name__)

ROWS = 1000
"""Number of rows to read at once."""
PART = re.compile(r"-(?P<number>\d{5})-of-(?P<count>\d{5})")
"""Number of a part and number of parts, in the hub's file names."""
TYPES: dict[str, type | tuple[type, ...]] = {
    "encoded images (bytes)": bytes,
    "integers": int,
    "strings": str,
    "integers or strings": (int, str),
}
"""Types that a column can be required to hold."""


@dataclass(frozen=True)
class Hub:
    """Location of a data set on the hub, and the name of its validation split there."""

    id: str
    config: str | None = None
    validation: str = "validation"

    def split(self, name: str) -> str:
        return self.validation if name == "validation" else name


@dataclass(frozen=True)
class Source:
    """A parquet file, a split on the hub, or a folder of images of one class."""

    where: str
    rows: int
    columns: Sequence[str]
    identity: tuple[tuple[str, int, int], ...]
    values: Callable[[str], Iterable[Any]]
    """Function that returns the values of a column."""
    files: Sequence[Path] = ()
    """File of each row, if the rows have their own files."""

    def read(self, column: str, expected: str, hint: str = "") -> Iterator[tuple[str, Any]]:
        """Yield the location, for messages, and the value of each row; ``expected`` is a key of :data:`TYPES`."""
        if column not in self.columns:
            raise DataError(f"{self.where} has no column {column!r}, only {', '.join(self.columns)}{hint}")
        if self.columns.count(column) > 1:
            raise DataError(f"{self.where} has several columns {column!r}")
        for row, value in enumerate(self.values(column)):
            place = str(self.files[row]) if self.files else f"{self.where}: column {column!r}, row {row}"
            value = value.get("bytes") if isinstance(value, dict) else value  # as `datasets` stores images
            if not isinstance(value, TYPES[expected]):
                got = "nothing" if value is None else type(value).__name__
                raise DataError(f"{place}: the column must hold {expected}, got {got}{hint}")
            yield place, value

    def read_classes(self, column: str, classes: range, hint: str = "") -> list[int]:
        """Return the integers of a column, each checked to be one of ``classes``."""
        labels = []
        for place, label in self.read(column, "integers", hint):
            if label not in classes:
                raise DataError(f"{place}: the label {label} is not in {classes.start} … {classes.stop - 1}")
            labels.append(label)
        return labels


def find_path(name: str, data_dir: Path | None, *, wanted: str, is_folder: bool = True) -> Path:
    """Return ``data_dir``; raise an error unless it is a folder or, with ``is_folder=False``, a file."""
    if data_dir is None:
        raise MissingDataError(f"{name} is read from local files: set data_dir to {wanted}")
    if not data_dir.exists():
        raise MissingDataError(f"{data_dir} does not exist; data_dir must be {wanted} for {name}")
    if data_dir.is_dir() != is_folder:
        kind = "folder" if data_dir.is_dir() else "file"
        raise DataError(f"data_dir must be {wanted} for {name}, got the {kind} {data_dir}")
    return data_dir


def open_split(name: str, hub: Hub, split: str, folder: Path | None) -> list[Source]:
    """Open a split of a data set: its files in ``folder``, or its data on the hub if ``folder`` is None.

    The files may also be in one of the hub's usual subfolders.
    """
    if folder is None:
        data = load_from_hub(hub, split)
        identity = tuple(identify(Path(file["filename"])) for file in data.cache_files)

        def values(column: str) -> Iterator[Any]:
            return _values(data.select_columns([column]).with_format("arrow").iter(batch_size=ROWS), column)

        return [Source(f"hub {hub.id!r}, split {hub.split(split)!r}", len(data), data.column_names, identity, values)]
    find_path(name, folder, wanted="a folder of its parquet files")
    pattern = "valid*.parquet" if split == "validation" else f"{split}*.parquet"
    places = [folder / sub for sub in dict.fromkeys(("", name, "data", hub.config or "", "plain_text"))]
    for place in places:
        if files := sorted(place.glob(pattern)):
            return open_files(files)
    raise MissingDataError(
        f"{name} needs {pattern} in one of {', '.join(map(str, places))}; found none. "
        f"Download the files of {hub.id!r} from the hub, or omit data_dir to let `datasets` download them"
    )


def open_files(files: Sequence[Path]) -> list[Source]:
    """Open the parquet files of a split; if their names number the parts, all parts must be there."""
    parts = [match for path in files if (match := PART.search(path.name))]
    names, counts = ", ".join(path.name for path in files), {match["count"] for match in parts}
    if parts and (len(parts) < len(files) or len(counts) > 1):
        raise DataError(f"{files[0].parent} holds files that do not belong together: {names}; keep one copy")
    for number in range(int(counts.pop()) if parts else 0):
        if number not in {int(match["number"]) for match in parts}:
            name = PART.sub(f"-{number:05d}-of-{parts[0]['count']}", parts[0].string)
            raise MissingDataError(f"{files[0].parent / name} is missing; found only {names}")
    return [_open_file(path) for path in files]


def _open_file(path: Path) -> Source:
    try:
        with import_module("pyarrow.parquet").ParquetFile(path) as file:
            columns, rows = file.schema_arrow.names, file.metadata.num_rows
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a complete parquet file: {error}") from error
    if rows == 0:
        raise DataError(f"{path} has no rows")
    return Source(str(path), rows, columns, (identify(path),), partial(_read_file, path))


def _read_file(path: Path, column: str) -> Iterator[Any]:
    try:
        with import_module("pyarrow.parquet").ParquetFile(path) as file:
            yield from _values(file.iter_batches(ROWS, columns=[column]), column)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())  # pyarrow's messages may span several lines
        raise DataError(f"{path}: column {column!r} is damaged: {reason}") from error


def _values(tables: Iterable[Any], column: str) -> Iterator[Any]:
    for table in tables:
        yield from table.column(column).to_pylist()


def load_from_hub(hub: Hub, split: str, *, streaming: bool = False) -> Any:
    """Load a split from the hub, or from the cache of `datasets` if it has been downloaded before."""
    try:
        builder = import_module("datasets").load_dataset_builder(hub.id, hub.config)
        size = f"{builder.info.download_size / 1e6:,.1f} MB" if builder.info.download_size else "unknown size"
        if streaming:
            logger.info(f"streaming {hub.id} from the hub while training: {size} per pass over all its splits")
            return builder.as_streaming_dataset(split=hub.split(split))
        if not Path(builder.cache_dir).is_dir():
            logger.info(f"downloading {hub.id} from the hub, once: {size}, cached in {builder.cache_dir}")
        builder.download_and_prepare()
        return builder.as_dataset(split=hub.split(split))
    except (OSError, ValueError, RuntimeError) as error:
        raise MissingDataError(
            f"cannot load {hub.id!r}, split {hub.split(split)!r}, from the hub: {error}. "
            "Without a connection, set data_dir to a folder of its parquet files"
        ) from error
