"""ImageNet: streamed, decoded on the fly, restartable."""

from __future__ import annotations

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from borat.lab.data import load
from borat.lab.data.errors import DataError
from data_files import IMAGE, encode, use_hub, write_images

SIZES = [(40, 60), (50, 40), (32, 32), (64, 33)]


def pictures(rows, seed=0):
    """Return images of different sizes, each of one colour, which identifies its crops."""
    colours = np.random.default_rng(seed).integers(0, 256, (rows, 3), dtype=np.uint8)
    return colours, [np.tile(c, (*SIZES[i % len(SIZES)], 1)) for i, c in enumerate(colours)]


@pytest.fixture
def folder(tmp_path):
    for split, rows in (("train", 24), ("validation", 9)):
        _, images = pictures(rows)
        half = rows // 2
        for part, chosen in enumerate((slice(0, half), slice(half, rows))):
            path = tmp_path / "data" / f"{split}-0000{part}-of-00002.parquet"
            write_images(path, images[chosen], "image", {"label": list(range(rows))[chosen]}, names=False)
    return tmp_path


def collect(task, split, **options):
    return list(task.batches(split, 5, **options))


def test_stream(folder):
    task = load("imagenet", data_dir=folder, image_size=16)
    assert task.description.sizes == {"train": 24, "validation": 9}
    assert task.description.input_shape == (3, 16, 16)
    assert task.description.num_classes == 1000
    batches = collect(task, "validation")
    assert [b.inputs[0].shape for b in batches] == [(5, 3, 16, 16), (4, 3, 16, 16)]
    assert torch.cat([b.labels for b in batches]).tolist() == list(range(9))
    mean, std = (torch.tensor(values) for values in (task.description.mean, task.description.std))
    expected = (torch.from_numpy(pictures(9)[0]) / 255 - mean) / std
    inputs = torch.cat([b.inputs[0] for b in batches])
    torch.testing.assert_close(inputs, expected[:, :, None, None].expand(-1, -1, 16, 16), atol=1e-5, rtol=0)


def test_every_epoch_has_every_example(folder):
    task = load("imagenet", data_dir=folder, image_size=16)
    orders = [torch.cat([b.labels for b in collect(task, "train", epoch=epoch)]).tolist() for epoch in (0, 1)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(24))


@pytest.mark.parametrize("start", [0, 2, 4, 5])
def test_a_restart_is_exact(folder, start):
    first = collect(load("imagenet", data_dir=folder, image_size=16), "train", epoch=1)
    second = collect(load("imagenet", data_dir=folder, image_size=16), "train", epoch=1, start=start)
    assert len(first) == 5
    assert len(second) == 5 - start
    for a, b in zip(first[start:], second, strict=True):
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(a.inputs[0], b.inputs[0])


def test_crops_and_flips(tmp_path):
    """Colours encode the position of a pixel: each crop must be a window of the image, mirrored or not."""
    ramp = np.zeros((16, 16, 3), np.uint8)
    ramp[..., 0] = 10 * np.arange(16)[:, None]
    ramp[..., 1] = 10 * np.arange(16)[None]
    for split in ("train", "validation"):
        write_images(tmp_path / f"{split}.parquet", [ramp] * 40, "image", {"label": [0] * 40}, names=False)
    task = load("imagenet", data_dir=tmp_path, image_size=14)  # scaled to 16, as it is
    mean, std = (torch.tensor(values)[:, None, None] for values in (task.description.mean, task.description.std))

    def windows(**options):
        (batch,) = task.batches("train", 40, **options)
        return (255 * (batch.inputs[0] * std + mean)).round().long() // 10

    seen = set()
    for window in windows():
        top, sideways = int(window[0, 0, 0]), window[1, 0].tolist()
        flip = sideways[0] > sideways[1]
        left = min(sideways)
        assert window[0, :, 0].tolist() == list(range(top, top + 14))
        assert sideways == sorted(range(left, left + 14), reverse=flip)
        seen.add((top, left, flip))
    assert len(seen) > 10  # of 18
    centre = windows(augment=False)
    assert (centre[:, 0, 0, 0] == 1).all()
    assert (centre[:, 1, 0, 0] == 1).all()


def test_processes_share_the_batches(folder):
    task = load("imagenet", data_dir=folder, image_size=16)
    whole = collect(task, "train")
    parts = [collect(task, "train", rank=rank, world_size=2) for rank in range(2)]
    for number, batch in enumerate(whole):
        labels = torch.cat([part[number].labels for part in parts])
        assert set(labels.tolist()) == set(batch.labels.tolist())
        assert len(parts[0][number].labels) == len(parts[1][number].labels)


def test_limit_and_device(folder):
    task = load("imagenet", data_dir=folder, image_size=16, train_limit=7).to("meta")
    batches = collect(task, "train")
    assert [len(b.labels) for b in batches] == [5, 2]
    assert batches[0].inputs[0].device.type == "meta"


def test_hub(monkeypatch):
    _, images = pictures(6)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=1000)})

    def load_dataset(path, config, split, streaming):
        assert (path, config, streaming) == ("ILSVRC/imagenet-1k", None, True)
        content = [{"bytes": encode(image), "path": None} for image in images]
        data = datasets.Dataset.from_dict({"image": content, "label": range(6)}, features=features)
        stream = data.to_iterable_dataset()
        stream.info.splits = datasets.SplitDict({split: datasets.SplitInfo(split, num_examples=6)})
        return stream

    use_hub(monkeypatch, load_dataset)
    task = load("imagenet", image_size=16)
    assert task.description.sizes == {"train": 6, "validation": 6}
    assert sorted(torch.cat([b.labels for b in collect(task, "train")]).tolist()) == list(range(6))


def test_errors_before_training(folder):
    with pytest.raises(ValueError, match="validation_size does not apply to imagenet"):
        load("imagenet", data_dir=folder, validation_size=5)
    _, images = pictures(2)
    path = folder / "data" / "train-00001-of-00002.parquet"
    write_images(path, images, "image", {"label": [3, 1000]}, names=False)
    many = pa.array([{"bytes": encode(images[0]), "path": None}] * 2001, type=IMAGE)
    pq.write_table(pa.table({"image": many, "label": [3] * 2000 + [1000]}), path)
    with pytest.raises(DataError, match=rf"{path}: column 'label', row 2000: the label 1000 is not in 0 … 999"):
        load("imagenet", data_dir=folder)
    write_images(path, images, "image", {"label": [3, 1000]}, names=False)
    with pytest.raises(DataError, match=rf"{path}: column 'label', row 1: the label 1000 is not in 0 … 999"):
        load("imagenet", data_dir=folder)
