"""User images: a folder with one folder for each class, or a folder of parquet files."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from borat.lab.data.cache import cached, identify
from borat.lab.data.errors import DataError, MissingDataError
from borat.lab.data.images import NAME_COLUMNS, make_image_task
from borat.lab.data.pixels import decode_images
from borat.lab.data.source import Source, find_path, open_files
from borat.lab.data.splits import checksum, find_classes, listed, name_classes, number_labels, split_off
from borat.lab.data.task import MemorySplit, Options, Task

logger = logging.getLogger(__name__)

PREFIXES = {"train": ("train",), "validation": ("valid", "val", "dev"), "test": ("test",)}
"""Prefixes of the folder or files of each split."""
SYSTEM_FILES = ("thumbs.db", "desktop.ini", "__macosx")
"""Files that operating systems leave in folders, besides hidden ones."""
WANTED = "a folder that holds a folder of images for each class, or parquet files"


def load_images(options: Options) -> Task:
    """Load greyscale or colour images of one size; ``image_size`` scales images of different sizes.

    Without a test split, a fifth of the images of each class is held out; without a validation split,
    then a tenth of the remaining ones.
    """
    folder = find_path("images", options.data_dir, wanted=WANTED)
    found = _find_parquet(folder) or _find_class_folders(folder, options)
    image, label = options.image_column or "image", options.label_column or "label"

    def read(split: str, column: str, expected: str) -> Iterator[tuple[str, Any]]:
        return chain.from_iterable(source.read(column, expected, NAME_COLUMNS) for source in found[split])

    next(read("train", image, "encoded images (bytes)"))  # fail on a wrong column before all labels are read
    named = {split: list(read(split, label, "integers or strings")) for split in found}
    classes = find_classes([name for _, name in named["train"]], folder)
    labels = {split: number_labels(names, classes) for split, names in named.items()}
    sizes = [len(numbers) for numbers in labels.values()]
    encoded = chain.from_iterable(read(split, image, "encoded images (bytes)") for split in found)
    identity = [(split, source.identity) for split, sources in found.items() for source in sources]
    tensors = cached(
        "images",
        (identity, options.image_size, image),
        lambda: {"images": decode_images(encoded, sum(sizes), side=options.image_size)},
    )
    splits = {
        split: MemorySplit(labels[split], tuple(source.where for source in sources), (pixels,))
        for (split, sources), pixels in zip(found.items(), torch.split(tensors["images"], sizes), strict=True)
    }
    return make_image_task(
        "images",
        split_off(splits, classes, options, folder),
        options,
        classes=len(classes),
        checksum=checksum(*(tensor for split in splits.values() for tensor in (*split.tensors, split.labels))),
        notes=(name_classes(classes), *_note_skipped(folder, chain.from_iterable(found.values()))),
    )


def _note_skipped(folder: Path, sources: Iterable[Source]) -> list[str]:
    """Return and log a note about skipped files, if images are in class folders."""
    read = {path for source in sources for path in source.files}
    files = [path for path in _visible(folder.rglob("*"), folder) if read and path.is_file() and path not in read]
    if not files:
        return []
    count = "1 file" if len(files) == 1 else f"{len(files)} files"
    note = f"skipped {count}, such as {files[0]}: only images in the folder of a class are read"
    logger.info(note)
    return [note]


def _by_split(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Group files or folders by split, from the prefixes of their names; the rest has the key "other"."""
    groups: dict[str, list[Path]] = {split: [] for split in (*PREFIXES, "other")}
    for path in paths:
        matching = (split for split, prefixes in PREFIXES.items() if path.name.lower().startswith(prefixes))
        groups[next(matching, "other")].append(path)
    return groups


def _names(paths: Iterable[Path]) -> str:
    return listed([path.name for path in paths])


def _visible(paths: Iterable[Path], folder: Path) -> list[Path]:
    """Sort paths and drop hidden and system files."""

    def is_hidden(name: str) -> bool:
        return name.startswith(".") or name.lower() in SYSTEM_FILES

    return sorted(path for path in paths if not any(map(is_hidden, path.relative_to(folder).parts)))


def _subfolders(folder: Path) -> list[Path]:
    return [path for path in _visible(folder.iterdir(), folder) if path.is_dir()]


def _find_class_folders(folder: Path, options: Options) -> dict[str, list[Source]]:
    for name in ("image_column", "label_column"):
        if getattr(options, name) is not None:
            raise DataError(f"{name} is for parquet files, but {folder} has none")
    groups = _by_split(_subfolders(folder))
    splits = [path for split in PREFIXES for path in groups[split] if _subfolders(path)]
    if not splits:  # the subfolders are classes, whatever their names
        return {"train": _list_images(folder)}
    if groups["other"] or not groups["train"] or max(map(len, groups.values())) > 1:
        raise DataError(
            f"{folder} must hold one folder for train, and at most one for val and test, because {_names(splits)} "
            f"contain folders and are read as splits, got {_names(_subfolders(folder))}. If all folders are classes, "
            f"rename {_names(splits)}"
        )
    return {split: _list_images(path) for split in PREFIXES for path in groups[split]}


def _list_images(folder: Path) -> list[Source]:
    """Return a source for each class folder in ``folder``."""
    classes = [_open_class(subfolder) for subfolder in _subfolders(folder)]
    if not classes:
        held = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        raise MissingDataError(f"data_dir must be {WANTED}; {folder} holds {held}")
    return classes


def _open_class(folder: Path) -> Source:
    suffixes = Image.registered_extensions()
    files = [x for x in _visible(folder.rglob("*"), folder) if x.suffix.lower() in suffixes and x.is_file()]
    if not files:
        raise DataError(f"{folder} holds no image; each folder in {folder.parent} must be a class of images")

    def values(column: str) -> Iterator[Any]:
        return (path.read_bytes() if column == "image" else folder.name for path in files)

    return Source(str(folder), len(files), ("image", "label"), tuple(map(identify, files)), values, files)


def _find_parquet(folder: Path) -> dict[str, list[Source]]:
    files = next((f for place in (folder, folder / "data") if (f := _visible(place.glob("*.parquet"), place))), [])
    groups = _by_split(files)
    others = groups.pop("other")
    if groups["train"] and others:
        raise DataError(
            f"{folder}: beside {groups['train'][0].name}, file names must begin with train, val or test, "
            f"got {_names(others)}"
        )
    groups["train"] = groups["train"] or others
    if files and not groups["train"]:
        raise MissingDataError(f"{folder} has no train*.parquet, only {_names(files)}")
    return {split: open_files(paths) for split, paths in groups.items() if paths}
