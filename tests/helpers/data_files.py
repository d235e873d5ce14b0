"""Tiny files in the hub's schemas, and a slow reference for the augmentation."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
REAL = "BORAT_TEST_DATA"
"""Environment variable that names a folder with real files, which are not part of the project."""


def real_files(name: str) -> Path:
    """Return the folder with the real files of a data set, or skip the test."""
    folder = os.environ.get(REAL)
    if not folder or not (Path(folder) / name).is_dir():
        pytest.skip(f"${REAL} names no folder with the real files of {name}")
    return Path(folder)


def encode(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def random_images(rows: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Return random images, (rows, height, width, 3), or (rows, height, width) for one channel."""
    channels, height, width = shape
    size = (rows, height, width) if channels == 1 else (rows, height, width, channels)
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def write_images(
    path: Path, images: np.ndarray, column: str, labels: dict[str, list[int]], kind: str = "PNG", names: bool = True
) -> None:
    """Write a file as on the hub: images as structs of bytes and path, integers with the names of the classes."""
    structs = pa.array([{"bytes": encode(i, kind), "path": None} for i in images], type=IMAGE)
    features = {column: {"_type": "Image"}} | {
        key: {"names": [str(i) for i in range(max(max(v), 0) + 1)], "_type": "ClassLabel"} for key, v in labels.items()
    }
    table = pa.table({column: structs} | {key: pa.array(values, pa.int64()) for key, values in labels.items()})
    if names:
        table = table.replace_schema_metadata({b"huggingface": json.dumps({"info": {"features": features}}).encode()})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def write_pairs(path: Path, pairs: list[tuple[str, str, int]]) -> None:
    """Write a file in SNLI's schema."""
    premises, hypotheses, labels = zip(*pairs, strict=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table({"premise": premises, "hypothesis": hypotheses, "label": pa.array(labels, pa.int64())}), path
    )


def slow_augmentation(image: np.ndarray, top: int, left: int, flip: bool, padding: int) -> np.ndarray:
    """Augment one image pixel by pixel, as a reference for the batched augmentation."""
    channels, height, width = image.shape
    out = np.zeros_like(image)
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                from_y, from_x = y + top - padding, x + left - padding
                inside = 0 <= from_y < height and 0 <= from_x < width
                out[c, y, width - 1 - x if flip else x] = image[c, from_y, from_x] if inside else 0
    return out


def use_hub(monkeypatch: pytest.MonkeyPatch, load: Callable[..., Any]) -> None:
    """Replace the hub of `datasets` by ``load(path, config, split, streaming)``."""

    def builder(path: str, config: str | None = None) -> SimpleNamespace:
        return SimpleNamespace(
            info=datasets.DatasetInfo(download_size=1_000),
            cache_dir="nowhere",
            download_and_prepare=lambda: None,
            as_dataset=lambda split: load(path, config, split=split, streaming=False),
            as_streaming_dataset=lambda split: load(path, config, split=split, streaming=True),
        )

    monkeypatch.setattr(datasets, "load_dataset_builder", builder)
