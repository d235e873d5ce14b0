"""Columns of tables to tensors: images are decoded into bytes, labels are checked."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from borat.lab.data.errors import CorruptFileError, LabelError, SchemaError
from borat.lab.data.source import ArrowTable, Source

IMAGE_ERRORS = (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""Errors of PIL for bytes that are no complete image, or an image that is too large."""


def decode_split(
    sources: Sequence[Source], image: str, shape: tuple[int, int, int], classes: dict[str, int]
) -> dict[str, Tensor]:
    """All of a split: ``"images"``, bytes of the given shape, and one tensor of labels for each key of ``classes``.

    In one thread: PIL holds Python's lock for most of the time that a small image takes, two threads are slower.
    """
    rows = sum(source.rows for source in sources)
    images = np.empty((rows, *shape), dtype=np.uint8)
    labels = {column: np.empty(rows, dtype=np.int64) for column in classes}
    end = 0
    for source in sources:
        first = end
        for table in source.tables():
            begin, end = end, end + table.num_rows
            for column, count in classes.items():
                labels[column][begin:end] = read_labels(source.where, table, column, count, begin - first)
            _decode_table(source.where, table, image, images[begin:end], begin - first)
    return {"images": torch.from_numpy(images), **{column: torch.from_numpy(a) for column, a in labels.items()}}


def _decode_table(where: str, table: ArrowTable, column: str, out: Any, first: int) -> None:
    mode = "L" if out.shape[1] == 1 else "RGB"
    for row, content in enumerate(table.column(column).combine_chunks().field("bytes").to_pylist()):
        place = f"{where}: column {column!r}, row {first + row}"
        pixels = decode_image(content, mode, place)
        if pixels.shape[:2] != out.shape[2:]:
            height, width = out.shape[2:]
            raise SchemaError(f"{place}: the image has {pixels.shape[:2]} pixels, expected ({height}, {width})")
        out[row] = pixels.transpose(2, 0, 1) if mode == "RGB" else pixels


def decode_image(content: bytes | None, mode: str, place: str) -> Any:
    """The pixels of a PNG or JPEG, (height, width) or, for RGB, (height, width, 3)."""
    if not content:
        raise SchemaError(f"{place} has no bytes")
    try:
        picture = Image.open(io.BytesIO(content))
        return np.asarray(picture if picture.mode == mode else picture.convert(mode))
    except IMAGE_ERRORS as error:
        raise CorruptFileError(f"{place}: the image cannot be decoded: {error}") from error


def read_labels(where: str, table: ArrowTable, column: str, classes: int, first: int = 0, lowest: int = 0) -> Any:
    """The integers of a column, each checked to be between ``lowest`` and ``classes`` - 1."""
    values = table.column(column)
    if values.null_count:
        raise LabelError(f"{where}: column {column!r} has {values.null_count} rows without a label")
    labels = values.to_numpy().astype(np.int64)
    wrong = np.flatnonzero((labels < lowest) | (labels >= classes))
    if len(wrong):
        row = int(wrong[0])
        raise LabelError(
            f"{where}: column {column!r}, row {first + row}: the label {labels[row]} is not in {lowest} … {classes - 1}"
        )
    return labels
