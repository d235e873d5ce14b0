"""Pixels of a user's own images: upright, on white, in grey or in colour, of 8 bits each."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps

from borat.lab.data.decode import IMAGE_ERRORS
from borat.lab.data.errors import CorruptFileError, SchemaError

VERSION = 2
"""Part of the key of what is cached: to be raised when the same bytes give other pixels."""

GREY = ("1", "L", "LA", "La")

BRIGHTEST = 65535
"""White in 16 bits."""

TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""Transpositions that turn an image upright, by its orientation in EXIF."""


def read_pixels(content: bytes | None, place: str, size: int | None) -> Any:
    """(height, width, 1 or 3), of a square with sides of ``size`` if that is given; ``place`` names it in a message."""
    if not content:
        raise SchemaError(f"{place} is empty; it must be an image")
    try:
        picture: Image.Image = Image.open(io.BytesIO(content))
        picture.load()  # a TIFF turns itself, and then has no orientation
        picture = _on_white(_with_8_bits(_upright(picture)))
        picture = ImageOps.fit(picture, (size, size)) if size else picture
    except IMAGE_ERRORS as error:
        raise CorruptFileError(f"{place}: the image cannot be decoded: {error}") from error
    pixels = np.asarray(picture)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _upright(picture: Image.Image) -> Image.Image:
    """Not by ``ImageOps.exif_transpose``: it writes the rest of EXIF anew, and fails where a camera had it wrong."""
    try:
        orientation = picture.getexif().get(ExifTags.Base.Orientation)
    except (SyntaxError, struct.error):  # damaged, but the image may be whole
        return picture
    return picture.transpose(TURNS[orientation]) if orientation in TURNS else picture


def _with_8_bits(picture: Image.Image) -> Image.Image:
    """Greys of 16 bits, which PIL would clip, are scaled. It may open them as whole numbers of 32 bits."""
    if not picture.mode.startswith(("I", "F")):
        return picture
    values = np.asarray(picture)
    if picture.mode == "F" or values.min() < 0 or values.max() > BRIGHTEST:
        raise ValueError(
            f"its mode is {picture.mode}, with values from {values.min():g} to {values.max():g}; "
            f"allowed are 8 bits a channel, or for grey whole numbers in 0 … {BRIGHTEST}"
        )
    values = np.where(values == picture.info.get("transparency"), BRIGHTEST, values)
    return Image.fromarray(np.rint(values / 257).astype(np.uint8))


def _on_white(picture: Image.Image) -> Image.Image:
    """In grey or in colour. What is under transparent pixels is often black, and nothing that anybody has seen."""
    mode = "L" if picture.mode in GREY else "RGB"
    if not picture.has_transparency_data:
        return picture.convert(mode)
    layer = picture.convert(f"{mode}A")
    white = Image.new(mode, picture.size, "white")
    white.paste(layer.convert(mode), mask=layer.getchannel("A"))
    return white
