"""Images of a user's own: a folder with one folder for each class, or a folder of parquet files."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from borat.lab.data.cache import cached
from borat.lab.data.errors import CorruptFileError, DataError, LabelError, MissingDataError, SchemaError
from borat.lab.data.images import NAME_COLUMNS, NOTHING, Decoded, make_task
from borat.lab.data.options import Options
from borat.lab.data.own import checksum, find_classes, find_path, listed, number_labels, share_out
from borat.lab.data.pixels import VERSION, read_pixels
from borat.lab.data.source import ROWS, check_complete, identify, library
from borat.lab.data.task import Task

logger = logging.getLogger(__name__)

SPLITS = {"train": ("train",), "validation": ("valid", "val", "dev"), "test": ("test",)}
"""First letters of the folder or files of each split."""

NOBODYS = ("thumbs.db", "desktop.ini", "__macosx")
"""Files that systems leave in folders, beside names that begin with a dot."""

WANTED = "a folder that holds a folder of images for each class, or parquet files"


@dataclass(frozen=True)
class ImageFiles:
    """One split as it lies on the disk."""

    files: tuple[Path, ...]
    labels: list[Any]
    places: Callable[[int], str]
    """The name of an example in a message."""
    contents: Callable[[], Iterator[bytes | None]]
    left_out: tuple[Path, ...] = ()


def load_images(options: Options) -> Task:
    """Images of one size, or brought to one by ``image_size``, in grey or in colour.

    Where the folder has no test or validation split, a fifth and then a tenth of the images of each class are held out.
    """
    folder = find_path("images", options.data_dir, wanted=WANTED, is_folder=True)
    found = _find_parquet(folder, options) or _find_classes(folder, options)
    names = found["train"].labels
    classes = find_classes(names, folder)
    decoded = _alike({split: _decode(split, files, classes, options) for split, files in found.items()}, folder)
    rows = share_out(decoded["train"].labels, classes, decoded, options, folder)
    splits = {**decoded, **{split: decoded["train"].pick(chosen) for split, chosen in rows.items()}}
    notes = [f"classes in the order of their numbers: {', '.join(map(str, classes))}"]
    if left_out := [path for files in found.values() for path in files.left_out]:
        count = "1 file" if len(left_out) == 1 else f"{len(left_out)} files"
        notes.append(f"left out {count}, such as {left_out[0]}: only images in the folder of a class are read")
        logger.info(notes[-1])
    task = make_task("images", splits, len(classes), NOTHING, options, notes=tuple(notes))
    sums = [tensor for split in decoded.values() for tensor in (split.images, split.labels)]
    return dataclasses.replace(task, description=dataclasses.replace(task.description, checksum=checksum(*sums)))


def _decode(split: str, found: ImageFiles, classes: list[Any], options: Options) -> Decoded:
    labels = number_labels(found.labels, classes, found.places)
    identity = (VERSION, tuple(identify(path) for path in found.files), options.image_size, options.image_column)

    def decode() -> dict[str, torch.Tensor]:
        pictures: list[Any] = []
        for row, content in enumerate(found.contents()):
            pictures.append(read_pixels(content, found.places(row), options.image_size))
            if pictures[row].shape[:2] != pictures[0].shape[:2]:
                raise SchemaError(
                    f"{found.places(row)}: the image has {_size(*pictures[row].shape[:2])} pixels, the first one "
                    f"{_size(*pictures[0].shape[:2])}; give image_size to bring all to one size"
                )
        if len({picture.shape[2] for picture in pictures}) > 1:  # one in colour: all are
            pictures = [np.broadcast_to(picture, (*picture.shape[:2], 3)) for picture in pictures]
        return {"images": torch.from_numpy(np.stack(pictures).transpose(0, 3, 1, 2).copy())}

    images = cached(options.cache, f"images-{split}", identity, decode)["images"]
    sources = tuple(dict.fromkeys(str(path if path.suffix == ".parquet" else path.parent) for path in found.files))
    return Decoded(images, labels, None, sources)


def _alike(decoded: dict[str, Decoded], folder: Path) -> dict[str, Decoded]:
    """All splits in colour, if one is. Their sizes must be the same."""
    sizes = {split: _size(*found.images.shape[2:]) for split, found in decoded.items()}
    if len({*sizes.values()}) > 1:
        got = ", ".join(f"{size} pixels in {split}" for split, size in sizes.items())
        raise SchemaError(f"{folder}: the images have {got}; give image_size to bring all to one size")
    channels = max(found.images.shape[1] for found in decoded.values())
    return {
        split: dataclasses.replace(found, images=found.images.expand(-1, channels, -1, -1).contiguous())
        for split, found in decoded.items()
    }


def _size(height: int, width: int) -> str:
    return f"{width} × {height}"  # noqa: RUF001


# Folders of classes


def _find_classes(folder: Path, options: Options) -> dict[str, ImageFiles]:
    for name in ("image_column", "label_column"):
        if getattr(options, name) is not None:
            raise DataError(f"{name} is for parquet files, of which {folder} has none")
    subfolders = _subfolders(folder)
    places = {split: [s for s in subfolders if s.name.lower().startswith(names)] for split, names in SPLITS.items()}
    named = [subfolder for found in places.values() for subfolder in found]
    splits = listed([subfolder.name for subfolder in named if _subfolders(subfolder)])
    if not splits:  # the subfolders are the classes
        return {"train": _list_classes(folder)}
    others = listed([subfolder.name for subfolder in subfolders if subfolder not in named])
    if others or not places["train"]:
        problem = f"{others} match no split" if others else "train is missing"
        raise DataError(
            f"{folder}: taken for splits because they hold folders: {splits}; but {problem}. "
            f"Name splits train, val and test or, if all folders are classes, give {splits} another name"
        )
    for split, found in places.items():
        if len(found) > 1:
            raise DataError(f"{folder} must hold one folder for {split}, got {', '.join(s.name for s in found)}")
    return {split: _list_classes(found[0]) for split, found in places.items() if found}


def _list_classes(folder: Path) -> ImageFiles:
    kinds = {*Image.registered_extensions()}
    files, labels = [], []
    left_out = [path for path in _visible(folder.iterdir(), folder) if path.suffix.lower() in kinds and path.is_file()]
    for subfolder in _subfolders(folder):
        inside = [path for path in _visible(subfolder.rglob("*"), subfolder) if path.is_file()]
        images = [path for path in inside if path.suffix.lower() in kinds]
        if not images:
            raise DataError(f"{subfolder} holds no image; each folder in {folder} must be a class of images")
        files += images
        labels += [subfolder.name] * len(images)
        left_out += [path for path in inside if path.suffix.lower() not in kinds]
    if not files:
        held = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        raise MissingDataError(f"data_dir must be {WANTED}; {folder} holds {held}")
    return ImageFiles(
        tuple(files),
        labels,
        lambda row: str(files[row]),
        lambda: (path.read_bytes() for path in files),
        tuple(left_out),
    )


def _subfolders(folder: Path) -> list[Path]:
    return [path for path in _visible(folder.iterdir(), folder) if path.is_dir()]


def _visible(paths: Iterable[Path], folder: Path) -> list[Path]:
    """In order, without what somebody who looks into the folder would not see there."""

    def is_hidden(name: str) -> bool:
        return name.startswith(".") or name.lower() in NOBODYS

    return sorted(path for path in paths if not any(map(is_hidden, path.relative_to(folder).parts)))


# Parquet files


def _find_parquet(folder: Path, options: Options) -> dict[str, ImageFiles]:
    files = next((f for place in (folder, folder / "data") if (f := _visible(place.glob("*.parquet"), place))), [])
    by_split = {split: [f for f in files if f.name.lower().startswith(names)] for split, names in SPLITS.items()}
    named = {path for found in by_split.values() for path in found}
    others = [path for path in files if path not in named]
    if by_split["train"] and others:
        names, train = listed([path.name for path in others]), by_split["train"][0].name
        raise DataError(f"{folder}: beside {train}, names of files must begin with train, val or test, got {names}")
    by_split["train"] = by_split["train"] or others
    if files and not by_split["train"]:
        raise MissingDataError(f"{folder} has no train*.parquet, only {', '.join(path.name for path in files)}")
    for found in by_split.values():
        check_complete(found)
    return {split: _open_parquet(found, options) for split, found in by_split.items() if found}


def _open_parquet(files: list[Path], options: Options) -> ImageFiles:
    image, label = options.image_column or "image", options.label_column or "label"
    kinds: dict[str, Path] = {}
    labels: list[Any] = []
    places: list[str] = []
    for path in files:
        kinds.setdefault(_label_kind(path, image, label), path)
        found = list(_read_column(path, label))
        if None in found:
            raise LabelError(f"{path}: column {label!r}, row {found.index(None)} has no label")
        labels += found
        places += [f"{path}: row {row}" for row in range(len(found))]
    if len(kinds) > 1:
        got = " and ".join(f"{kind} in {path}" for kind, path in kinds.items())
        raise SchemaError(f"column {label!r} must hold whole numbers in all files or text in all, got {got}")
    if not labels:
        raise DataError(f"{files[0]} has no rows")

    def contents() -> Iterator[bytes | None]:
        for path in files:
            for value in _read_column(path, image):
                yield value["bytes"] if isinstance(value, dict) else value

    return ImageFiles(tuple(files), labels, places.__getitem__, contents)


def _read_column(path: Path, name: str) -> Iterator[Any]:
    """Its values; the footer may be whole where they are not."""
    try:
        with library("pyarrow.parquet").ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS, columns=[name]):
                yield from batch.column(name).to_pylist()
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())  # it may be of several lines
        raise CorruptFileError(f"{path}: column {name!r} is damaged: {reason}") from error


def _label_kind(path: Path, image: str, label: str) -> str:
    """Return what the labels are, whole numbers or text; raise for a column that cannot be used."""
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
    kind = kind.value_type if types.is_dictionary(kind) else kind  # as pandas writes categories
    if types.is_integer(kind):
        return "whole numbers"
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    raise SchemaError(f"{path}: column {label!r} must hold whole numbers or text, got {kind}; {NAME_COLUMNS}")
