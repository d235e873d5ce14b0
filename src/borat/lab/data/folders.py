"""Images of a user's own: a folder with one folder for each class, or a folder of parquet files."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from borat.lab.data.cache import cached
from borat.lab.data.decode import IMAGE_ERRORS
from borat.lab.data.errors import CorruptFileError, DataError, LabelError, MissingDataError, SchemaError
from borat.lab.data.images import NAME_COLUMNS, NOTHING, Decoded, make_task
from borat.lab.data.options import Options
from borat.lab.data.own import checksum, find_classes, find_path, number_labels, share_out
from borat.lab.data.source import ROWS, check_complete, identify, library
from borat.lab.data.task import Task

SPLITS = {"train": ("train",), "validation": ("valid", "val", "dev"), "test": ("test",)}
"""What the names of a split's folder or files begin with."""

WANTED = "a folder that holds a folder of images for each class, or parquet files"


@dataclass(frozen=True)
class ImageFiles:
    """One split as it lies on the disk."""

    files: tuple[Path, ...]
    labels: list[Any]
    places: Callable[[int], str]
    """The name of an example in a message."""
    contents: Callable[[], Iterator[bytes | None]]


def load_images(options: Options) -> Task:
    """Images of one size, or brought to one by ``image_size``, in grey or in colour.

    Where the folder has no test or validation split, a fifth and then a tenth of the images of each class are held out.
    """
    folder = find_path("images", options.data_dir, wanted=WANTED, is_folder=True)
    found = _find_parquet(folder, options) or _find_classes(folder, options)
    names = found["train"].labels
    classes = find_classes(names, folder)
    decoded = {split: _decode(split, files, classes, options) for split, files in found.items()}
    rows = share_out(decoded["train"].labels, classes, decoded, options, folder)
    splits = {**decoded, **{split: decoded["train"].pick(chosen) for split, chosen in rows.items()}}
    shapes = {tuple(split.images.shape[1:]) for split in splits.values()}
    if len(shapes) > 1:
        raise SchemaError(f"{folder}: the splits hold images of different shapes, {shapes}; give image_size")
    notes = (f"classes in the order of their numbers: {', '.join(map(str, classes))}",)
    task = make_task("images", splits, len(classes), NOTHING, options, notes=notes)
    sums = [tensor for split in decoded.values() for tensor in (split.images, split.labels)]
    return dataclasses.replace(task, description=dataclasses.replace(task.description, checksum=checksum(*sums)))


def _decode(split: str, found: ImageFiles, classes: list[Any], options: Options) -> Decoded:
    labels = number_labels(found.labels, classes, found.places)
    identity = (tuple(identify(path) for path in found.files), options.image_size, options.image_column)

    def decode() -> dict[str, torch.Tensor]:
        pictures: list[Any] = []
        for row, content in enumerate(found.contents()):
            pictures.append(_pixels(content, found.places(row), options.image_size))
            if pictures[row].shape[:2] != pictures[0].shape[:2]:
                (height, width), (first_height, first_width) = pictures[row].shape[:2], pictures[0].shape[:2]
                raise SchemaError(
                    f"{found.places(row)}: the image has {width} × {height} pixels, the first one "  # noqa: RUF001
                    f"{first_width} × {first_height}; give image_size to bring all to one size"  # noqa: RUF001
                )
        if len({picture.shape[2] for picture in pictures}) > 1:  # one in colour: all are
            pictures = [np.broadcast_to(picture, (*picture.shape[:2], 3)) for picture in pictures]
        return {"images": torch.from_numpy(np.stack(pictures).transpose(0, 3, 1, 2).copy())}

    images = cached(options.cache, f"images-{split}", identity, decode)["images"]
    sources = tuple(dict.fromkeys(str(path if path.suffix == ".parquet" else path.parent) for path in found.files))
    return Decoded(images, labels, None, sources)


def _pixels(content: bytes | None, place: str, size: int | None) -> Any:
    """(height, width, 1 or 3)"""
    if not content:
        raise SchemaError(f"{place} is empty; it must be an image")
    try:
        file = Image.open(io.BytesIO(content))
        picture = file.convert("L" if file.mode in ("1", "L") else "RGB")
        picture = ImageOps.fit(picture, (size, size)) if size else picture
    except IMAGE_ERRORS as error:
        raise CorruptFileError(f"{place}: the image cannot be decoded: {error}") from error
    pixels = np.asarray(picture)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


# Folders of classes


def _find_classes(folder: Path, options: Options) -> dict[str, ImageFiles]:
    for name in ("image_column", "label_column"):
        if getattr(options, name) is not None:
            raise DataError(f"{name} is for parquet files, of which {folder} has none")
    subfolders = _subfolders(folder)
    places = {split: [s for s in subfolders if s.name.lower().startswith(names)] for split, names in SPLITS.items()}
    if not places["train"] or not _subfolders(places["train"][0]):  # no splits: the subfolders are the classes
        return {"train": _list_classes(folder)}
    for split, found in places.items():
        if len(found) > 1:
            raise DataError(f"{folder} must hold one folder for {split}, got {', '.join(s.name for s in found)}")
    return {split: _list_classes(found[0]) for split, found in places.items() if found}


def _list_classes(folder: Path) -> ImageFiles:
    kinds = {*Image.registered_extensions()}
    files, labels = [], []
    for subfolder in _subfolders(folder):
        inside = sorted(path for path in subfolder.rglob("*") if path.suffix.lower() in kinds and path.is_file())
        if not inside:
            raise DataError(f"{subfolder} holds no image; each folder in {folder} must be a class of images")
        files += inside
        labels += [subfolder.name] * len(inside)
    if not files:
        held = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        raise MissingDataError(f"data_dir must be {WANTED}; {folder} holds {held}")
    return ImageFiles(tuple(files), labels, lambda row: str(files[row]), lambda: (path.read_bytes() for path in files))


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


# Parquet files


def _find_parquet(folder: Path, options: Options) -> dict[str, ImageFiles]:
    files = next((f for place in (folder, folder / "data") if (f := sorted(place.glob("*.parquet")))), [])
    by_split = {split: [f for f in files if f.name.lower().startswith(names)] for split, names in SPLITS.items()}
    named = {path for found in by_split.values() for path in found}
    by_split["train"] = by_split["train"] or [path for path in files if path not in named]
    if files and not by_split["train"]:
        raise MissingDataError(f"{folder} has no train*.parquet, only {', '.join(path.name for path in files)}")
    for found in by_split.values():
        check_complete(found)
    return {split: _open_parquet(found, options) for split, found in by_split.items() if found}


def _open_parquet(files: list[Path], options: Options) -> ImageFiles:
    image, label = options.image_column or "image", options.label_column or "label"
    labels: list[Any] = []
    places: list[str] = []
    for path in files:
        _check_columns(path, image, label)
        column = library("pyarrow.parquet").read_table(path, columns=[label]).column(label)
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise LabelError(f"{path}: column {label!r}, row {row} has no label")
        labels += column.to_pylist()
        places += [f"{path}: row {row}" for row in range(len(column))]
    if not labels:
        raise DataError(f"{files[0]} has no rows")

    def contents() -> Iterator[bytes | None]:
        for path in files:
            for batch in library("pyarrow.parquet").ParquetFile(path).iter_batches(ROWS, columns=[image]):
                for value in batch.column(0).to_pylist():
                    yield value["bytes"] if isinstance(value, dict) else value

    return ImageFiles(tuple(files), labels, places.__getitem__, contents)


def _check_columns(path: Path, image: str, label: str) -> None:
    types = library("pyarrow").types
    try:
        schema = library("pyarrow.parquet").read_schema(path)
    except (OSError, ValueError) as error:
        raise CorruptFileError(f"{path} is not a complete parquet file: {error}") from error
    for column in (image, label):
        if column not in schema.names:
            raise SchemaError(f"{path} has no column {column!r}, only {', '.join(schema.names)}; {NAME_COLUMNS}")
    kind = schema.field(image).type
    kind = kind.field("bytes").type if types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
    if not (types.is_binary(kind) or types.is_large_binary(kind)):
        raise SchemaError(f"{path}: column {image!r} must hold encoded images (bytes), got {kind}; {NAME_COLUMNS}")
    kind = schema.field(label).type
    if not (types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind)):
        raise SchemaError(f"{path}: column {label!r} must hold whole numbers or text, got {kind}; {NAME_COLUMNS}")
