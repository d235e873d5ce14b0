"""ImageNet: too large for memory, so it is streamed from `datasets` and decoded while it is used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from borat.lab.data.augment import normalise
from borat.lab.data.decode import decode_image, read_labels
from borat.lab.data.errors import DataError, LabelError, MissingDataError
from borat.lab.data.options import Options
from borat.lab.data.randomness import Purpose, derived_seed, generator
from borat.lab.data.source import Hub, check_schema, find_files, library, load_from_hub, open_file, stream_files
from borat.lab.data.task import Batch, Description, Plan, Task

HUB = Hub("ILSVRC/imagenet-1k")
CLASSES = 1000
COLUMNS = {"image": "image", "label": "integer"}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The published ones: measuring them would take a pass over the data."""
BUFFER = 2048
"""Images that are shuffled together, still compressed, file after file: the hub has shuffled the files' contents."""
BORDER = 256 / 224
"""The shorter side is scaled to this many times the crop's."""


@dataclass(eq=False)
class StreamSplit:
    """A split that is read once for each epoch.

    The order is that of `datasets`' shuffle: of the files, and within a buffer. It depends only on the seed and the
    epoch. To start in the middle, the examples before are read and passed over, undecoded.
    """

    data: Any
    size: int
    where: str
    crop: int
    device: torch.device | str = "cpu"

    def __len__(self) -> int:
        return self.size

    def to(self, device: torch.device | str) -> StreamSplit:
        return StreamSplit(self.data, self.size, self.where, self.crop, device)

    def batches(self, plan: Plan) -> Iterator[Batch]:
        """Batches of centre crops, or with augmentation of random crops and flips; one is decoded ahead."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            ahead: list[Future[Any]] | None = None
            labels = torch.empty(0)
            for number, rows in self._rows(plan):
                share = plan.share(len(rows)).tolist()
                draws = torch.rand(len(rows), 3, generator=generator(*_key(plan, number))) if plan.augment else None
                now = [pool.submit(self._decode, rows[i]["image"]["bytes"], _at(draws, i)) for i in share]
                if ahead:
                    yield self._batch(ahead, labels, plan)
                ahead, labels = now, torch.tensor([self._label(rows[i]["label"]) for i in share])
            if ahead:
                yield self._batch(ahead, labels, plan)

    def _rows(self, plan: Plan) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        data = self.data
        if plan.shuffle:
            seed = derived_seed(Purpose.ORDER, plan.seed, plan.epoch)
            data = data.shuffle(seed=seed, buffer_size=BUFFER, max_buffer_input_shards=1)
        rows = iter(data.skip(plan.start * plan.batch_size))
        number = plan.start
        while batch := list(islice(rows, plan.batch_size)):
            yield number, batch
            number += 1

    def _label(self, label: int | None) -> int:
        if label is None or not 0 <= label < CLASSES:
            raise LabelError(f"{self.where}: column 'label': the label {label} is not in 0 … {CLASSES - 1}")
        return label

    def _decode(self, content: bytes, draw: list[float] | None) -> Tensor:
        """Scale the shorter side, then cut out a square: its place and whether to flip are drawn in [0, 1)."""
        pixels = decode_image(content, "RGB", f"{self.where}: column 'image'")
        height, width = pixels.shape[:2]
        scale = round(self.crop * BORDER) / min(height, width)
        size = (max(round(width * scale), self.crop), max(round(height * scale), self.crop))
        picture = torch.from_numpy(np.array(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR)))
        down, right, flip = draw or (0.5, 0.5, 0.0)
        top, left = int(down * (size[1] - self.crop + 1)), int(right * (size[0] - self.crop + 1))
        square = picture[top : top + self.crop, left : left + self.crop].permute(2, 0, 1)
        return square.flip(-1) if flip >= 0.5 else square

    def _batch(self, images: list[Future[Any]], labels: Tensor, plan: Plan) -> Batch:
        device = self.device if plan.device is None else plan.device
        mean, std = (255.0 * torch.tensor(values, device=device) for values in (MEAN, STD))
        pixels = torch.stack([future.result() for future in images]).to(device)
        return Batch((normalise(pixels, mean, std),), labels.to(device))


def _key(plan: Plan, number: int) -> tuple[Purpose, int, int, int]:
    return Purpose.AUGMENTATION, plan.seed, plan.epoch, number


def _at(draws: Tensor | None, row: int) -> list[float] | None:
    return None if draws is None else draws[row].tolist()


def load_imagenet(options: Options) -> Task:
    """ILSVRC 2012: 1.28 million training images and the 50,000 for validation. The test labels are not public."""
    if options.label_noise:
        raise DataError("label_noise needs the labels in memory, but imagenet is streamed; use label_noise=0")
    if options.validation_size is not None:
        raise DataError("imagenet has a validation set of its own; leave out validation_size")
    crop = options.image_size or 224
    opened = {split: _open(split, options) for split in ("train", "validation")}
    splits = {split: StreamSplit(data, size, where[0], crop) for split, (data, size, where) in opened.items()}
    if options.train_limit is not None and options.train_limit < len(splits["train"]):
        train = splits["train"]
        splits["train"] = StreamSplit(train.data.take(options.train_limit), options.train_limit, train.where, crop)
    description = Description(
        "imagenet",
        CLASSES,
        (3, crop, crop),
        sizes={key: len(split) for key, split in splits.items()},
        mean=MEAN,
        std=STD,
        augment=options.augment,
        sources={split: where for split, (_, _, where) in opened.items()},
        notes=("streamed; mean and std are the published ones", "the labels of the test set are not public"),
    )
    return Task(description, splits, options.seed)


def _open(split: str, options: Options) -> tuple[Any, int, tuple[str, ...]]:
    """The stream, its size and its origin. The labels of local files are all read now: errors before training."""
    if options.data_dir is None:
        data = load_from_hub(HUB, split, streaming=True)
        where = f"hub {HUB.id!r}, split {split!r}"
        if not data.features or not data.info.splits:
            raise MissingDataError(f"{where}: the hub does not tell its columns and size")
        check_schema(where, data.features.arrow_schema, COLUMNS)
        size = data.info.splits[split].num_examples
        origin: tuple[str, ...] = (where,)
    else:
        paths = find_files("imagenet", HUB, split, options.data_dir)
        size = sum(open_file(path, COLUMNS).rows for path in paths)
        for path in paths:
            first = 0
            for table in open_file(path, {"label": "integer"}).tables():
                read_labels(str(path), table, "label", CLASSES, first)
                first += len(table)
        data, origin = stream_files(paths, COLUMNS), tuple(map(str, paths))
    image = library("datasets").Image(decode=False)
    return data.select_columns(list(COLUMNS)).cast_column("image", image), size, origin
