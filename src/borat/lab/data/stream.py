"""ImageNet, which does not fit into memory: streamed by `datasets` and decoded during training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from borat.lab.data.images import normalise
from borat.lab.data.pixels import decode_image
from borat.lab.data.sampling import Purpose, make_generator
from borat.lab.data.source import Hub, load_from_hub, open_split
from borat.lab.data.task import Batch, Options, Plan, Task, make_task

HUB = Hub("ILSVRC/imagenet-1k")
CLASSES = range(1000)
COLUMNS = ["image", "label"]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Published statistics; measuring them would take a pass over the data."""
BUFFER = 2048
"""Size of the shuffle buffer, in compressed images; the contents of the hub's files are already shuffled."""
BORDER = 256 / 224
"""Length of the scaled image's shorter side, in units of the crop's."""


@dataclass(eq=False)
class StreamSplit:
    """A split that is read once per epoch.

    `datasets` shuffles the files, and the examples within a buffer; the order depends only on the seed and the epoch.
    To resume within an epoch, earlier examples are read but not decoded.
    """

    data: Any
    size: int
    sources: tuple[str, ...]
    crop: int
    device: torch.device | str = "cpu"

    def __len__(self) -> int:
        return self.size

    def to(self, device: torch.device | str) -> StreamSplit:
        return replace(self, device=device)

    def batches(self, plan: Plan) -> Iterator[Batch]:
        """Yield batches of centre crops or, with augmentation, of random crops and flips; decode one batch ahead."""
        data = self.data
        if plan.shuffle:
            seed = make_generator(Purpose.ORDER, plan.seed, plan.epoch).initial_seed()
            data = data.shuffle(seed=seed, buffer_size=BUFFER, max_buffer_input_shards=1)
        rows = iter(data.skip(plan.start * plan.batch_size))
        decoding: list[Future[Tensor]] = []
        labels: list[int] = []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for number in count(plan.start):
                chosen = list(islice(rows, plan.batch_size))
                draws = torch.tensor([[0.5, 0.5, 0.0]]).expand(len(chosen), -1)
                if plan.augment and chosen:
                    generator = make_generator(Purpose.AUGMENTATION, plan.seed, plan.epoch, number)
                    draws = torch.rand(len(chosen), 3, generator=generator)
                share = plan.share(len(chosen)).tolist() if chosen else []
                ahead = [pool.submit(self._decode, chosen[i]["image"]["bytes"], draws[i].tolist()) for i in share]
                if decoding:
                    pixels = torch.stack([future.result() for future in decoding]).to(self.device)
                    mean, std = ((255.0 * torch.tensor(values)).tolist() for values in (MEAN, STD))
                    yield Batch((normalise(pixels, mean, std),), torch.tensor(labels, device=self.device))
                if not chosen:
                    return
                decoding, labels = ahead, [chosen[i]["label"] for i in share]

    def _decode(self, content: bytes, draws: list[float]) -> Tensor:
        """Scale the shorter side, then crop a square; ``draws`` in [0, 1) determine its position and flip."""
        picture = decode_image(content, f"{self.sources[0]}: column 'image'", "RGB")
        scale = round(self.crop * BORDER) / min(picture.size)
        width, height = (max(round(side * scale), self.crop) for side in picture.size)
        pixels = torch.from_numpy(np.array(picture.resize((width, height), Image.Resampling.BILINEAR)))
        down, right, flip = draws
        top, left = int(down * (height - self.crop + 1)), int(right * (width - self.crop + 1))
        square = pixels[top : top + self.crop, left : left + self.crop].permute(2, 0, 1)
        return square.flip(-1) if flip >= 0.5 else square


def load_imagenet(options: Options) -> Task:
    """Load ILSVRC 2012: 1.28 million training images and 50,000 for validation. The test labels are not public."""
    splits = {split: _open(split, options) for split in ("train", "validation")}
    train = splits["train"]
    if options.train_limit is not None and options.train_limit < len(train):
        splits["train"] = replace(train, data=train.data.take(options.train_limit), size=options.train_limit)
    return make_task(
        "imagenet",
        splits,
        options,
        input_shape=(3, train.crop, train.crop),
        classes=len(CLASSES),
        mean=MEAN,
        std=STD,
        augment=options.augment,
        notes=("streamed; mean and std are the published ones",),
    )


def _open(split: str, options: Options) -> StreamSplit:
    """Open a stream, checking all labels of local files before training."""
    if options.data_dir is None:
        data = load_from_hub(HUB, split, streaming=True)
        size = data.info.splits[split].num_examples
        where: tuple[str, ...] = (f"hub {HUB.id!r}, split {split!r}",)
    else:
        sources = open_split("imagenet", HUB, split, options.data_dir)
        for source in sources:
            next(source.read("image", "encoded images (bytes)"))
            source.read_classes("label", CLASSES)
        size, where = sum(source.rows for source in sources), tuple(source.where for source in sources)
        # load_dataset("parquet") uses the same reader, but waits seconds for the network first
        data = import_module("datasets").IterableDataset.from_parquet(list(where), split="train", columns=COLUMNS)
    data = data.select_columns(COLUMNS).cast_column("image", import_module("datasets").Image(decode=False))
    return StreamSplit(data, size, where, options.image_size or 224)
