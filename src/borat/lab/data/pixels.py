"""Decoding of images to tensors of bytes."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from borat.lab.data.errors import DataError

IMAGE_ERRORS = (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""PIL's errors for bytes that are not a complete image, and for images that are too large."""
GREY = ("1", "L", "LA", "La")

WHITE = 65535
"""White in 16-bit greyscale."""


def decode_images(
    encoded: Iterable[tuple[str, bytes | None]],
    count: int,
    *,
    mode: str | None = None,
    pixels: tuple[int, int] | None = None,
    side: int | None = None,
) -> Tensor:
    """Decode images of one size into a tensor of bytes with shape (count, channels, height, width).

    It has three channels if any image has colours. More threads would not help: PIL holds the GIL most of the time.

    Args:
        encoded: location, for messages, and bytes of each image.
        count: number of images.
        mode: see :func:`decode_image`.
        pixels: required height and width; by default those of the first image.
        side: side of the squares to which images are scaled and cropped; None keeps their size.
    """
    hint = "" if pixels else ", as the first image; set image_size to scale all of them"
    images = np.empty((0, 0, 0, 0), dtype=np.uint8)
    for row, (place, content) in enumerate(encoded):
        picture = decode_image(content, place, mode)
        values = np.asarray(ImageOps.fit(picture, (side, side)) if side else picture)
        values = values[None] if values.ndim == 2 else values.transpose(2, 0, 1)
        pixels = pixels or values.shape[1:]
        if values.shape[1:] != pixels:
            got, expected = (f"{width} x {height}" for height, width in (values.shape[1:], pixels))
            raise DataError(f"{place}: the image has {got} pixels, expected {expected}{hint}")
        if row == 0:
            images = np.empty((count, *values.shape), dtype=np.uint8)
        elif len(values) > images.shape[1]:
            images = np.repeat(images, len(values), 1)
        images[row] = values
    return torch.from_numpy(images)


def decode_image(content: bytes | None, place: str, mode: str | None = None) -> Image.Image:
    """Decode an image to PIL's ``mode``; by default to 8-bit greyscale or RGB, as a viewer shows it."""
    if not content:
        raise DataError(f"{place} is empty; it must be an image")
    try:
        picture: Image.Image = Image.open(io.BytesIO(content))
        picture.load()  # before EXIF is read: PIL transposes a TIFF itself, and removes its orientation
        return picture.convert(mode) if mode else _flatten(_reduce_to_8_bits(_transpose(picture)))
    except IMAGE_ERRORS as error:
        raise DataError(f"{place}: the image cannot be decoded: {error}") from error


def _transpose(picture: Image.Image) -> Image.Image:
    """Apply the orientation in the EXIF data."""
    try:
        picture.getexif()  # caches the result
    except (SyntaxError, struct.error):  # damaged EXIF, but the image may be intact
        return picture
    picture.info.pop("exif", None)  # PIL would rewrite it, and fail on malformed EXIF data of some cameras
    return ImageOps.exif_transpose(picture)


def _reduce_to_8_bits(picture: Image.Image) -> Image.Image:
    """Scale 16-bit greyscale, which PIL would clip and may open as 32-bit integers."""
    if not picture.mode.startswith(("I", "F")):
        return picture
    values: Any = np.asarray(picture)
    if picture.mode == "F" or values.min() < 0 or values.max() > WHITE:
        raise ValueError(
            f"its mode is {picture.mode}, with values from {values.min():g} to {values.max():g}; "
            f"allowed are 8 bits per channel, or greyscale integers in 0 … {WHITE}"
        )
    values = np.where(values == picture.info.get("transparency"), WHITE, values)
    return Image.fromarray(np.rint(values / 257).astype(np.uint8))


def _flatten(picture: Image.Image) -> Image.Image:
    """Flatten transparency onto white: transparent pixels are often black underneath."""
    mode = "L" if picture.mode in GREY else "RGB"
    if not picture.has_transparency_data:
        return picture.convert(mode)
    layer = picture.convert(f"{mode}A")
    white = Image.new(mode, picture.size, "white")
    white.paste(layer.convert(mode), mask=layer.getchannel("A"))
    return white
