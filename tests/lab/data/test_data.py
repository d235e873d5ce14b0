"""The data sets: every loader end to end, the batches, the augmentation and the noise."""

from __future__ import annotations

import bz2
import dataclasses
import json
import re
import time
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch

from borat.lab.data import DATASETS, load
from borat.lab.data.errors import DataError
from borat.lab.data.images import IMAGE_SETS, ImageTransform, channel_statistics
from borat.lab.data.sampling import switch_labels
from borat.lab.data.source import Hub, load_from_hub
from borat.lab.data.splits import hold_out, limit
from borat.lab.data.task import MemorySplit
from data_files import encode, random_images, slow_augmentation, use_hub, write_images


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BORAT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


ROWS = {"train": 30, "validation": 8, "test": 10, "extra": 12}


def write_set(name, folder, kind="PNG"):
    """Write tiny files of all splits of a data set; return the images of each split."""
    spec = IMAGE_SETS[name]
    names = ["train", "validation"] if spec.held_out is None else ["train", "test"]
    images = {}
    for number, split in enumerate([*names, *(["extra"] if spec.extra else [])]):
        rows = ROWS[split]
        labels = {spec.label: [i % spec.classes for i in range(rows)]}
        if spec.coarse:
            labels[spec.coarse] = [i % spec.classes // 5 for i in range(rows)]
        images[split] = random_images(rows, spec.shape, number)
        stem = "valid" if split == "validation" else split
        half = rows // 2
        for part, chosen in enumerate((slice(0, half), slice(half, rows))):
            path = folder / f"{stem}-0000{part}-of-00002.parquet"
            write_images(path, images[split][chosen], spec.image, {k: v[chosen] for k, v in labels.items()}, kind)
    return images


def whole(task, split, **options):
    """Return all inputs and labels of a split, in order."""
    batches = list(task.batches(split, 7, shuffle=False, **options))
    return torch.cat([b.inputs[0] for b in batches]), torch.cat([b.labels for b in batches])


@pytest.mark.parametrize("name", IMAGE_SETS)
def test_image_sets(name, tmp_path):
    spec = IMAGE_SETS[name]
    images = write_set(name, tmp_path)
    task = load(name, data_dir=tmp_path, validation_size=None if spec.held_out is None else 5)
    info = task.description
    trained = 30 if spec.held_out is None else 25 + (12 if spec.extra else 0)
    assert info.sizes["train"] == trained
    assert info.sizes["validation"] == (8 if spec.held_out is None else 5)
    assert ("test" in info.sizes) == (spec.held_out is not None)
    assert (info.num_classes, info.input_shape) == (spec.classes, spec.shape)
    assert len(info.sources["train"]) == (4 if spec.extra else 2)
    assert json.loads(json.dumps(dataclasses.asdict(info)))["name"] == name

    train = task.splits["train"]
    assert train.tensors[0].dtype == torch.uint8
    assert train.labels.dtype == torch.int64
    pixels = train.tensors[0].double() / 255
    torch.testing.assert_close(torch.tensor(info.mean).double(), pixels.mean((0, 2, 3)), atol=1e-6, rtol=0)
    torch.testing.assert_close(torch.tensor(info.std).double(), pixels.std((0, 2, 3), correction=0), atol=1e-6, rtol=0)

    # the split that is not shuffled holds the pixels and labels of the files, in their order
    split = "validation" if spec.held_out is None else "test"
    inputs, labels = whole(task, split)
    expected = torch.from_numpy(images[split]).view(-1, *spec.shape[1:], spec.shape[0]).permute(0, 3, 1, 2) / 255
    mean, std = torch.tensor(info.mean)[:, None, None], torch.tensor(info.std)[:, None, None]
    torch.testing.assert_close(inputs, (expected - mean) / std, atol=1e-5, rtol=1e-5)
    assert labels.tolist() == [i % spec.classes for i in range(len(labels))]


def test_every_training_image_is_in_one_split(tmp_path):
    images = write_set("svhn", tmp_path)
    task = load("svhn", data_dir=tmp_path, validation_size=6)
    train, validation = (task.splits[key].tensors[0] for key in ("train", "validation"))
    seen = {i.numpy().tobytes() for i in torch.cat([train, validation])}
    files = np.concatenate([images["train"], images["extra"]]).transpose(0, 3, 1, 2)
    assert seen == {i.tobytes() for i in files}
    hard = {i.tobytes() for i in images["train"].transpose(0, 3, 1, 2)}
    assert all(i.numpy().tobytes() in hard for i in validation)  # of the difficult images, never of the extra ones


def test_held_out_examples_do_not_depend_on_the_seed(tmp_path):
    write_set("cifar10", tmp_path)
    first, second = (load("cifar10", data_dir=tmp_path, validation_size=5, seed=seed) for seed in (0, 1))
    assert torch.equal(first.splits["validation"].tensors[0], second.splits["validation"].tensors[0])


def test_grey_and_jpeg_images_become_rgb(tmp_path):
    grey = random_images(30, (1, 64, 64))
    for split, rows in (("train", 30), ("valid", 8)):
        write_images(tmp_path / f"{split}.parquet", grey[:rows], "image", {"label": list(range(rows))}, "JPEG")
    images = load("tiny_imagenet", data_dir=tmp_path).splits["train"].tensors[0]
    assert images.shape == (30, 3, 64, 64)
    assert torch.equal(images[:, 0], images[:, 1])


def test_cifar100_by_its_superclasses_and_smaller(tmp_path):
    write_set("cifar100", tmp_path)
    options = {"data_dir": tmp_path, "validation_size": 5, "label_column": "coarse_label"}
    task = load("cifar100", **options, image_size=8)
    assert (task.description.num_classes, task.description.input_shape) == (20, (3, 8, 8))
    fine = load("cifar100", data_dir=tmp_path, validation_size=5)
    assert torch.equal(task.split("test").labels, fine.split("test").labels // 5)
    whole = fine.split("test").tensors[0].float()
    assert (task.split("test").tensors[0].float().mean((2, 3)) - whole.mean((2, 3))).abs().max() < 10
    noisy = load("cifar100", **options, label_noise=1.0)
    assert noisy.description.switched_labels == noisy.description.sizes["train"], "any super-class may be drawn"


def test_noise_of_cifar100_stays_in_the_superclass(tmp_path):
    write_set("cifar100", tmp_path)
    clean, noisy = (load("cifar100", data_dir=tmp_path, validation_size=5, label_noise=p) for p in (0.0, 1.0))
    before, after = (task.splits["train"].labels for task in (clean, noisy))
    assert torch.equal(before // 5, after // 5)
    assert noisy.description.switched_labels == int((before != after).sum()) == 25


def test_data_set_in_a_subfolder(tmp_path):
    write_set("mnist", tmp_path / "mnist")
    write_set("cifar10", tmp_path / "data")
    assert load("mnist", data_dir=tmp_path, validation_size=5).description.sizes["test"] == 10
    assert load("cifar10", data_dir=str(tmp_path), validation_size=5).description.sizes["test"] == 10


@pytest.mark.parametrize(("name", "column"), [("mnist", "image"), ("svhn", "image"), ("tiny_imagenet", "image")])
def test_hub(name, column, tmp_path, monkeypatch):
    """Without a folder, the hub is queried with its own id, configuration and split names."""
    spec, asked = IMAGE_SETS[name], []
    images = random_images(30, spec.shape)
    features = datasets.Features({column: datasets.Image(), "label": datasets.ClassLabel(num_classes=spec.classes)})

    def load_dataset(path, config, split, streaming):
        asked.append((path, config, split, streaming))
        content = [{"bytes": encode(image), "path": None} for image in images]
        return datasets.Dataset.from_dict({column: content, "label": [0] * 30}, features=features)

    use_hub(monkeypatch, load_dataset)
    task = load(name, validation_size=None if spec.held_out is None else 5)
    splits = ["train", "valid"] if spec.held_out is None else ["train", "test", *(["extra"] if spec.extra else [])]
    assert asked == [(spec.hub.id, spec.hub.config, split, False) for split in splits]
    assert task.description.sources["train"][0] == f"hub {spec.hub.id!r}, split 'train'"


def test_a_download_is_logged_once_with_its_size(tmp_path, monkeypatch, caplog):
    """A folder replaces the hub: `datasets` reads both in the same way."""
    folder = tmp_path / "mnist"
    write_set("mnist", folder)
    info = "dataset_info:\n  features:\n  - name: image\n    dtype: image\n  - name: label\n    dtype: int64\n"
    (folder / "README.md").write_text(f"---\n{info}  download_size: 12345678\n---\n")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "kept")
    caplog.set_level("INFO", logger="borat.lab")
    first = load_from_hub(Hub(str(folder)), "train")
    (message,) = [record.getMessage() for record in caplog.records if record.name.startswith("borat")]
    assert re.match(rf"downloading {folder} from the hub, once: 12.3 MB, cached in {tmp_path}/kept/", message)
    caplog.clear()
    again = load_from_hub(Hub(str(folder)), "train")
    assert again.num_rows == first.num_rows > 0
    assert not [record for record in caplog.records if record.name.startswith("borat")]


def test_decoded_images_are_cached_until_the_file_changes(tmp_path, cache, monkeypatch):
    write_set("mnist", tmp_path)
    first = load("mnist", data_dir=tmp_path, validation_size=5)
    kept = sorted(cache.iterdir())
    assert [path.suffix for path in kept] == [".pt", ".pt"]
    with monkeypatch.context() as patch:
        patch.setattr("borat.lab.data.images.decode_images", None)  # would fail if called
        second = load("mnist", data_dir=tmp_path, validation_size=5)
    assert torch.equal(first.splits["train"].tensors[0], second.splits["train"].tensors[0])

    time.sleep(0.01)
    changed = 255 - random_images(30, (1, 28, 28))
    for path in tmp_path.glob("train*.parquet"):
        path.unlink()
    write_images(tmp_path / "train.parquet", changed, "image", {"label": [0] * 30})
    third = load("mnist", data_dir=tmp_path, validation_size=5)
    assert not third.splits["train"].labels.any()
    assert set(kept) < set(cache.iterdir())


def test_a_damaged_cache_is_replaced(tmp_path, cache):
    write_set("mnist", tmp_path)
    first = load("mnist", data_dir=tmp_path, validation_size=5)
    for path in cache.iterdir():
        path.write_bytes(path.read_bytes()[:1000])
    second = load("mnist", data_dir=tmp_path, validation_size=5)
    assert torch.equal(first.splits["train"].tensors[0], second.splits["train"].tensors[0])


def test_a_cache_that_cannot_be_written_only_warns(tmp_path, monkeypatch):
    write_set("mnist", tmp_path)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("BORAT_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot be cached"):
        task = load("mnist", data_dir=tmp_path, validation_size=5)
    assert task.description.sizes["train"] == 25


def test_an_interrupted_write_leaves_nothing(tmp_path, cache, monkeypatch):
    write_set("mnist", tmp_path)

    def save(tensors, path):
        Path(path).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", save)
    with pytest.warns(UserWarning, match="disk full"):
        load("mnist", data_dir=tmp_path, validation_size=5)
    assert not list(cache.iterdir())


def test_downloaded_images_are_decoded_once(tmp_path, cache, monkeypatch):
    write_set("mnist", tmp_path)

    def load_dataset(path, config, split, streaming):
        files = [str(file) for file in sorted(tmp_path.glob(f"{split}*.parquet"))]
        return datasets.Dataset.from_parquet(files, cache_dir=str(tmp_path / "arrow"))

    use_hub(monkeypatch, load_dataset)
    first = load("mnist", validation_size=5)
    assert len(list(cache.iterdir())) == 2
    monkeypatch.setattr("borat.lab.data.images.decode_images", None)
    second = load("mnist", validation_size=5)
    assert torch.equal(first.splits["train"].tensors[0], second.splits["train"].tensors[0])


def test_digits():
    task = load()
    assert task.description.input_shape == (1, 8, 8)
    assert task.description.augment is False
    inputs, _ = whole(task, "train")
    assert abs(float(inputs.mean())) < 1e-5
    assert abs(float(inputs.std()) - 1) < 1e-3
    assert sorted(torch.cat([whole(task, split)[1] for split in task.splits]).bincount().tolist()) == sorted(
        [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    )


LIBSVM = "{a} 1:1 3:0.5\n{b} 2:1\n" * 20


@pytest.mark.parametrize(("name", "train", "test"), [
    ("mushrooms", "mushrooms.bz2", None),
    ("a9a", "a9a", "a9a.t"),
    ("w8a", "w8a.txt", None),
    ("ijcnn1", "ijcnn1.trn.bz2", "ijcnn1.tst.bz2"),
    ("ijcnn1", "ijcnn1.bz2", "ijcnn1.t.bz2"),
])  # fmt: skip
def test_libsvm(name, train, test, tmp_path):
    classes = {"a": 1, "b": 2} if name == "mushrooms" else {"a": "-1", "b": "+1"}
    for file in filter(None, (train, test)):
        content = LIBSVM.format(**classes).encode()
        (tmp_path / file).write_bytes(bz2.compress(content) if file.endswith(".bz2") else content)
    task = load(name, data_dir=tmp_path)
    assert sum(task.description.sizes.values()) == (40 if test is None else 80)
    assert bool(task.description.notes) == (test is None)
    for split in task.splits:
        inputs, labels = whole(task, split)
        assert inputs.shape[1:] == task.description.input_shape
        assert torch.equal(inputs[:, 1], labels.float())  # feature 2 is 1 for the second class only
        assert torch.equal(inputs[:, 2], 0.5 * (1 - labels.float()))


def test_separable_has_a_margin():
    task = load("separable", validation_size=10)
    assert task.description.sizes == {"train": 1000, "validation": 10, "test": 10}
    inputs, labels = whole(task, "train")
    from sklearn.svm import LinearSVC

    assert LinearSVC(C=1e4, max_iter=100_000).fit(inputs, labels).score(inputs, labels) == 1.0


# batches


@pytest.fixture
def cifar(tmp_path):
    write_set("cifar10", tmp_path)
    return load("cifar10", data_dir=tmp_path, validation_size=5)


def equal(first, second):
    return len(first) == len(second) and all(
        torch.equal(a.labels, b.labels) and all(map(torch.equal, a.inputs, b.inputs))
        for a, b in zip(first, second, strict=True)
    )


def test_nothing_is_dropped(cifar):
    batches = list(cifar.batches("train", 10))
    assert [len(b.labels) for b in batches] == [10, 10, 5]
    assert cifar.num_batches("train", 10) == 3
    assert sorted(torch.cat([b.labels for b in batches]).tolist()) == sorted(cifar.splits["train"].labels.tolist())


@pytest.mark.parametrize("start", range(4))
def test_a_restart_is_exact(cifar, start):
    torch.manual_seed(0)
    straight = list(cifar.batches("train", 10, epoch=3))
    torch.rand(5)  # the global generator plays no part
    assert equal(straight[start:], list(cifar.batches("train", 10, epoch=3, start=start)))


def test_order_and_augmentation_depend_on_seed_and_epoch(cifar):
    def epoch(**options):
        return list(cifar.batches("train", 10, **options))

    assert equal(epoch(), epoch(seed=0, epoch=0))
    assert not equal(epoch(), epoch(epoch=1))
    assert not equal(epoch(), epoch(seed=1))
    assert not equal(epoch(), epoch(augment=False))
    assert not equal(epoch(shuffle=False), epoch(shuffle=False, epoch=1))  # another augmentation
    assert equal(list(cifar.batches("test", 4)), list(cifar.batches("test", 4, epoch=1, seed=1)))


def test_processes_share_the_batches_of_one(cifar):
    for split in ("train", "test"):
        single = list(cifar.batches(split, 6))
        shares = [list(cifar.batches(split, 6, rank=rank, world_size=3)) for rank in range(3)]
        for number, batch in enumerate(single):
            parts = [share[number] for share in shares if number < len(share)]
            inputs = torch.cat([part.inputs[0] for part in parts])
            rows = {row.numpy().tobytes() for row in inputs}
            assert rows == {row.numpy().tobytes() for row in batch.inputs[0]}
            if split == "train":
                assert len({len(part.labels) for part in parts}) == 1
            else:
                assert len(inputs) == len(batch.labels)


def test_batches_move_to_the_device(cifar):
    batch = next(cifar.to("meta").batches("train", 4))
    assert batch.inputs[0].device.type == batch.labels.device.type == "meta"
    moved = cifar.to("cpu")
    assert equal(list(moved.batches("train", 10)), list(cifar.batches("train", 10)))


@pytest.mark.parametrize(("arguments", "message"), [
    ({"batch_size": 0}, "batch_size must be"),
    ({"batch_size": 4, "epoch": -1}, "epoch must be an integer of at least 0"),
    ({"batch_size": 4, "rank": 2, "world_size": 2}, "rank must be between 0 and 1"),
    ({"batch_size": 4, "split": "extra"}, "unknown split of cifar10 'extra'; did you mean 'train'"),
])  # fmt: skip
def test_bad_plans(cifar, arguments, message):
    with pytest.raises(ValueError, match=message):
        cifar.batches(**{"split": "train", **arguments})


# augmentation


@pytest.mark.parametrize(("padding", "flips"), [(4, True), (2, False), (0, True)])
def test_augmentation_against_its_slow_twin(padding, flips):
    transform = ImageTransform(padding=padding, flips=flips)
    images = torch.from_numpy(random_images(64, (3, 8, 6))).permute(0, 3, 1, 2)
    draws = transform.draw(64, torch.Generator().manual_seed(0))
    batch = transform.augment(images, draws)
    assert batch.dtype == torch.uint8
    for image, result, (top, left, flip) in zip(images, batch, draws.T.tolist(), strict=True):
        assert np.array_equal(result, slow_augmentation(image.numpy(), top, left, bool(flip), padding))


def test_augmentation_draws_all_crops_and_flips():
    draws = ImageTransform(padding=4, flips=True).draw(20_000, torch.Generator().manual_seed(0))
    for edges in draws[:2]:
        counts = edges.bincount()
        assert len(counts) == 9
        assert (counts - 20_000 / 9).abs().max() < 250
    assert abs(draws[2].float().mean() - 0.5) < 0.02
    assert not ImageTransform(padding=4).draw(100, torch.Generator())[2].any()


def test_statistics_of_a_constant_channel():
    images = torch.full((10, 1, 4, 4), 7, dtype=torch.uint8)
    mean, std = channel_statistics(images)
    assert (mean.tolist(), std.tolist()) == ([7.0], [1.0])


# noise


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(
    "families", [torch.arange(100) // 5, torch.arange(100) % 20, torch.zeros(100, dtype=torch.int64)]
)
def test_noise_stays_in_the_family_and_has_its_share(probability, families):
    labels = torch.arange(20_000) % 100
    noisy = switch_labels(labels, probability, families, seed=0)
    assert torch.equal(families[noisy], families[labels])
    switched = int((noisy != labels).sum())
    assert abs(switched / 20_000 - probability) < 4 * (probability * (1 - probability) / 20_000) ** 0.5 + 1e-9
    if probability == 1.0:  # all other members of the family are equally likely
        size = int((families == families[0]).sum())
        counts = noisy[labels == 0].bincount(minlength=100)[families == families[0]]
        assert counts[0] == 0
        assert (counts > 0).sum() > 0.8 * (min(size, 200) - 1)


def test_noise_is_seeded():
    labels, families = torch.arange(1000) % 10, torch.zeros(10, dtype=torch.int64)
    assert torch.equal(*(switch_labels(labels, 0.5, families, 3) for _ in range(2)))
    assert not torch.equal(*(switch_labels(labels, 0.5, families, seed) for seed in (3, 4)))


def test_a_class_alone_in_its_family_stays():
    labels = torch.tensor([0, 1, 2] * 10)
    assert switch_labels(labels, 1.0, torch.tensor([0, 1, 1]), 0).tolist() == [0, 2, 1] * 10


def test_noise_touches_training_labels_only():
    clean, noisy = load("digits"), load("digits", label_noise=0.3, seed=5)
    changed = int((clean.splits["train"].labels != noisy.splits["train"].labels).sum())
    assert noisy.description.switched_labels == changed
    assert abs(changed / 1258 - 0.3) < 0.05
    for split in ("validation", "test"):
        assert torch.equal(clean.splits[split].labels, noisy.splits[split].labels)


def test_limits_are_nested_and_holding_out_is_a_partition():
    split = MemorySplit(torch.arange(100), ("file",), (torch.arange(100.0)[:, None],))
    rest, held = hold_out(split, 30)
    assert torch.equal(torch.cat([rest.labels, held.labels]).sort().values, split.labels)
    assert torch.equal(held.tensors[0][:, 0].long(), held.labels)
    small, large = (set(limit(rest, size).labels.tolist()) for size in (10, 40))
    assert small < large < set(rest.labels.tolist())
    assert len(small) == 10
    assert limit(rest, 1000) is rest
    with pytest.raises(DataError, match="validation_size=100 must be smaller than the 100 training examples in file"):
        hold_out(split, 100)


def test_train_limit():
    task = load("digits", train_limit=100)
    assert task.description.sizes == {"train": 100, "validation": 180, "test": 359}
    assert "digits" in DATASETS


def test_image_sets_at_another_size(tmp_path, cache):
    images = write_set("cifar100", tmp_path)
    arguments = {"data_dir": tmp_path, "validation_size": 5}
    small = load("cifar100", **arguments, image_size=16)
    assert small.description.input_shape == (3, 16, 16)
    assert load("cifar100", **arguments).description.input_shape == (3, 32, 32), "the cache is keyed by size"
    assert load("cifar100", **arguments, image_size=16).splits["test"].tensors[0].equal(small.splits["test"].tensors[0])
    blocks = torch.from_numpy(images["test"]).permute(0, 3, 1, 2).float().unfold(2, 2, 2).unfold(3, 2, 2).mean((4, 5))
    shrunk = small.splits["test"].tensors[0].float()
    alike = torch.corrcoef(torch.stack([blocks.flatten(), shrunk.flatten()]))[0, 1]
    assert alike > 0.9, "each pixel is about the mean of four"
