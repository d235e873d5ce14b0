"""Tables from parquet files or from the Hugging Face hub, checked before anything is read from them.

Everything is read through `datasets`; it is imported when first needed, because that takes a second.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from borat.lab.data.errors import CorruptFileError, DataError, MissingDataError, SchemaError

logger = logging.getLogger(__name__)

ROWS = 1000
"""Rows read at once."""

PART = re.compile(r"-(?P<number>\d{5})-of-(?P<count>\d{5})")
"""Numbers of the parts of a split in the hub's file names."""

ArrowTable = Any
"""A pyarrow.Table; pyarrow has no type stubs."""


@dataclass(frozen=True)
class Hub:
    """Place of a data set on the hub, and the hub's names of its splits if they differ from ours."""

    id: str
    config: str | None = None
    validation: str = "validation"

    def split(self, name: str) -> str:
        return self.validation if name == "validation" else name


@dataclass(frozen=True)
class Source:
    """One file or one hub split: its name for messages, its size, what identifies its content, and its tables."""

    where: str
    rows: int
    identity: tuple[tuple[str, int, int], ...]
    tables: Callable[[], Iterator[ArrowTable]]


def library(name: str) -> Any:
    """`datasets` or a part of `pyarrow`."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"this data set needs {name}: pip install 'borat[lab]'") from error


def open_split(name: str, hub: Hub, split: str, columns: dict[str, str], folder: Path | None) -> list[Source]:
    """The sources of one split: files of ``folder``, or the hub's without one.

    Args:
        name: of the data set.
        hub: where it is on the hub.
        split: ``"train"``, ``"validation"``, ``"test"`` or ``"extra"``.
        columns: the columns to read, and what they must hold: ``"image"``, ``"integer"`` or ``"string"``.
        folder: with ``<split>*.parquet``.
    """
    if folder is None:
        return [_open_hub(hub, split, columns)]
    return [open_file(path, columns) for path in find_files(name, hub, split, folder)]


def find_files(name: str, hub: Hub, split: str, folder: Path) -> list[Path]:
    """The parquet files of a split in ``folder``, or in one of the subfolders that the hub keeps them in."""
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
    """Files of one split are all the numbered parts of one whole, as the hub writes them, or have other names."""
    parts = {path: match for path in files if (match := PART.search(path.name))}
    if not parts:
        return
    for path in files:
        if path not in parts:
            raise DataError(f"{path} does not belong with {next(iter(parts)).name}: keep one of them in the folder")
    counts = {int(match["count"]) for match in parts.values()}
    if len(counts) > 1:
        names = ", ".join(path.name for path in parts)
        raise DataError(f"the parts in {files[0].parent} are of different wholes: {names}")
    missing = set(range(counts.pop())) - {int(match["number"]) for match in parts.values()}
    if missing:
        first, match = next(iter(parts.items()))
        name = first.name.replace(f"-{match['number']}-of-", f"-{min(missing):05d}-of-")
        raise MissingDataError(f"{first.parent / name} is missing: {first.name} is a part of {match['count']}")


def identify(path: Path) -> tuple[str, int, int]:
    """Path, size and time of change: a file that changes has another identity."""
    status = path.stat()
    return str(path.resolve()), status.st_size, status.st_mtime_ns


def open_file(path: Path, columns: dict[str, str]) -> Source:
    """One parquet file. Its footer is read and its schema checked now, so that errors come before training."""
    where = str(path)
    try:
        footer = library("pyarrow.parquet").ParquetFile(path)
        schema, rows = footer.schema_arrow, footer.metadata.num_rows
        footer.close()
    except (OSError, ValueError) as error:
        raise CorruptFileError(f"{path} is not a complete parquet file: {error}") from error
    check_schema(where, schema, columns)
    if rows == 0:
        raise DataError(f"{path} has no rows")

    def tables() -> Iterator[ArrowTable]:
        try:
            yield from stream_files([path], columns).with_format("arrow").iter(batch_size=ROWS)
        except (OSError, ValueError) as error:
            raise CorruptFileError(f"{path} is damaged: {error}") from error

    return Source(where, rows, (identify(path),), tables)


def stream_files(paths: Sequence[Path], columns: Iterable[str]) -> Any:
    """A streamed data set of these files: nothing is copied to `datasets`' own cache.

    Not by ``load_dataset("parquet")``, the same reader, which asks the network first and waits seconds for no answer.
    """
    files = [str(path) for path in paths]
    return library("datasets").IterableDataset.from_parquet(files, split="train", columns=list(columns))


def load_from_hub(hub: Hub, split: str, *, streaming: bool = False) -> Any:
    """The hub's data set, from `datasets`' cache if it has been downloaded before."""
    try:
        builder = library("datasets").load_dataset_builder(hub.id, hub.config)
        size = readable_size(builder.info.download_size)
        if streaming:
            logger.info(f"reading {hub.id} from the hub while training: {size} for each pass over all its splits")
            return builder.as_streaming_dataset(split=hub.split(split))
        if not Path(builder.cache_dir).is_dir():
            logger.info(f"fetching {hub.id} from the hub, once: {size}, to be kept in {builder.cache_dir}")
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
    ('161 MB', '12.5 kB', 'its size is not known')
    """
    if not size:
        return "its size is not known"
    power = min(int(math.log(size, 1000)), 4)
    return f"{size / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"


def _open_hub(hub: Hub, split: str, columns: dict[str, str]) -> Source:
    data = load_from_hub(hub, split)
    where = f"hub {hub.id!r}, split {hub.split(split)!r}"
    check_schema(where, data.features.arrow_schema, columns)
    data = data.select_columns(list(columns)).with_format("arrow")
    identity = tuple(identify(Path(file["filename"])) for file in data.cache_files)
    return Source(where, data.num_rows, identity, lambda: data.iter(batch_size=ROWS))


def check_schema(where: str, schema: Any, columns: dict[str, str]) -> None:
    """Check that the columns are there and hold what they should."""
    for column, kind in columns.items():
        if column not in schema.names:
            raise SchemaError(f"{where} has no column {column!r}, only {', '.join(schema.names)}")
        if schema.names.count(column) > 1:
            raise SchemaError(f"{where} has several columns {column!r}")
        found = schema.field(column).type
        if not _is_kind(found, kind):
            raise SchemaError(f"{where}: column {column!r} must hold {_KINDS[kind]}, but it holds {found}")


_KINDS = {"image": "images (a struct with 'bytes')", "integer": "integers", "string": "strings"}


def _is_kind(found: Any, kind: str) -> bool:
    types = library("pyarrow").types
    if kind == "image":
        names = [field.name for field in found] if types.is_struct(found) else []
        return "bytes" in names and _is_binary(types, found.field("bytes").type)
    if kind == "integer":
        return bool(types.is_integer(found))
    return bool(types.is_string(found) or types.is_large_string(found))


def _is_binary(types: Any, found: Any) -> bool:
    return bool(types.is_binary(found) or types.is_large_binary(found))
