"""User images: a folder with one folder for each class, or a folder of parquet files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from borat.lab.data.cache import cached, identify
from borat.lab.data.errors import DataError, MissingDataError
from borat.lab.data.images import NAME_COLUMNS, make_image_task
from borat.lab.data.options import Options
from borat.lab.data.own import checksum, find_classes, find_path, listed, name_classes, number_labels, split_off
from borat.lab.data.pixels import decode_images
from borat.lab.data.source import open_files
from borat.lab.data.task import MemorySplit, Task

logger = logging.getLogger(__name__)

PREFIXES = {"train": ("train",), "validation": ("valid", "val", "dev"), "test": ("test",)}
"""Prefixes of the folder or files of each split."""

SYSTEM_FILES = ("thumbs.db", "desktop.ini", "__macosx")
"""Files that operating systems leave in folders, besides hidden ones."""

WANTED = "a folder that holds a folder of images for each class, or parquet files"


@dataclass(frozen=True)
class ImageFiles:
    """One split on disk; labels and encoded images come with their places, for messages."""

    sources: Iterable[str]
    identity: tuple[Any, ...]
    labels: list[tuple[str, Any]]
    read: Callable[[], Iterable[tuple[str, bytes | None]]]
    skipped: Sequence[Path] = ()


def load_images(options: Options) -> Task:
    """Load images of one size, or scaled to one by ``image_size``, in grey or in colour.

    If there is no test or validation split, a fifth and then a tenth of the images of each class are held out.
    """
    folder = find_path("images", options.data_dir, wanted=WANTED, is_folder=True)
    found = _find_parquet(folder, options) or _find_class_folders(folder, options)
    classes = find_classes([label for _, label in found["train"].labels], folder)
    labels = {split: number_labels(files.labels, classes) for split, files in found.items()}
    sizes = [len(numbers) for numbers in labels.values()]
    encoded = chain.from_iterable(files.read() for files in found.values())
    tensors = cached(
        options.cache,
        "images",
        (tuple(files.identity for files in found.values()), options.image_size, options.image_column),
        lambda: {"images": decode_images(encoded, sum(sizes), side=options.image_size)},
    )
    splits = {
        split: MemorySplit(labels[split], tuple(dict.fromkeys(files.sources)), (pixels,))
        for (split, files), pixels in zip(found.items(), torch.split(tensors["images"], sizes), strict=True)
    }
    notes = [name_classes(classes)]
    if skipped := [path for files in found.values() for path in files.skipped]:
        count = "1 file" if len(skipped) == 1 else f"{len(skipped)} files"
        notes.append(f"skipped {count}, such as {skipped[0]}: only images in the folder of a class are read")
        logger.info(notes[-1])
    return make_image_task(
        "images",
        split_off(splits, classes, options, folder),
        options,
        classes=len(classes),
        checksum=checksum(*(tensor for split in splits.values() for tensor in (*split.tensors, split.labels))),
        notes=tuple(notes),
    )


def _by_split(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Group files or folders by the prefixes of their names; others have the key "other"."""
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


def _find_class_folders(folder: Path, options: Options) -> dict[str, ImageFiles]:
    for name in ("image_column", "label_column"):
        if getattr(options, name) is not None:
            raise DataError(f"{name} is for parquet files, but {folder} has none")
    groups = _by_split(_subfolders(folder))
    others = groups.pop("other")
    splits = _names(path for paths in groups.values() for path in paths if _subfolders(path))
    if not splits:  # the subfolders are classes, whatever their names
        return {"train": _list_images(folder)}
    if others or not groups["train"]:
        problem = f"{_names(others)} match no split" if others else "train is missing"
        raise DataError(
            f"{folder}: {splits} are read as splits because they contain folders, but {problem}. "
            f"Name the splits train, val and test or, if all folders are classes, rename {splits}"
        )
    for split, paths in groups.items():
        if len(paths) > 1:
            raise DataError(f"{folder} must hold one folder for {split}, got {_names(paths)}")
    return {split: _list_images(path) for split, paths in groups.items() for path in paths}


def _list_images(folder: Path) -> ImageFiles:
    """List the images in the class folders of ``folder``."""
    suffixes = {*Image.registered_extensions()}
    images: list[tuple[Path, str]] = []
    skipped = [p for p in _visible(folder.iterdir(), folder) if p.suffix.lower() in suffixes and p.is_file()]
    for subfolder in _subfolders(folder):
        files = [path for path in _visible(subfolder.rglob("*"), subfolder) if path.is_file()]
        found = [(path, subfolder.name) for path in files if path.suffix.lower() in suffixes]
        if not found:
            raise DataError(f"{subfolder} holds no image; each folder in {folder} must be a class of images")
        images += found
        skipped += [path for path in files if path.suffix.lower() not in suffixes]
    if not images:
        held = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        raise MissingDataError(f"data_dir must be {WANTED}; {folder} holds {held}")
    return ImageFiles(
        [str(path.parent) for path, _ in images],
        tuple(identify(path) for path, _ in images),
        [(str(path), label) for path, label in images],
        lambda: ((str(path), path.read_bytes()) for path, _ in images),
        skipped,
    )


def _find_parquet(folder: Path, options: Options) -> dict[str, ImageFiles]:
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
    return {split: _open_parquet(paths, options) for split, paths in groups.items() if paths}


def _open_parquet(files: list[Path], options: Options) -> ImageFiles:
    image, label = options.image_column or "image", options.label_column or "label"
    sources = open_files(files)
    for source in sources:
        next(source.read(image, "encoded images (bytes)", NAME_COLUMNS))  # before all labels are read
    return ImageFiles(
        [source.where for source in sources],
        tuple(source.identity for source in sources),
        [found for source in sources for found in source.read(label, "integers or strings", NAME_COLUMNS)],
        lambda: chain.from_iterable(source.read(image, "encoded images (bytes)") for source in sources),
    )
