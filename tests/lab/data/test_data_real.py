"""The loaders on real files, if available: published sizes, statistics and counts."""

from __future__ import annotations

import pytest
import torch

from borat.lab.data import load
from data_files import real_files


@pytest.fixture(scope="module")
def cifar100(tmp_path_factory):
    folder = real_files("cifar100")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BORAT_CACHE", str(tmp_path_factory.getbasetemp() / "cifar-cache"))
        yield lambda **options: load("cifar100", data_dir=folder, **options)


def test_cifar100(cifar100):
    task = cifar100()
    assert task.description.sizes == {"train": 45_000, "validation": 5_000, "test": 10_000}
    assert task.description.mean == pytest.approx((0.507, 0.487, 0.441), abs=0.002)
    assert task.description.std == pytest.approx((0.267, 0.256, 0.276), abs=0.002)
    assert task.splits["test"].labels.bincount().tolist() == [100] * 100
    both = torch.cat([task.splits[split].labels for split in ("train", "validation")])
    assert both.bincount().tolist() == [500] * 100
    batch = next(task.batches("train", 512))
    assert batch.inputs[0].shape == (512, 3, 32, 32)
    assert abs(float(next(task.batches("train", 512, augment=False)).inputs[0].mean())) < 0.1


def test_cifar100_noise(cifar100):
    clean, noisy = cifar100(), cifar100(label_noise=0.5)
    before, after = clean.splits["train"].labels, noisy.splits["train"].labels
    coarse = cifar100(label_column="coarse_label").splits["train"].labels
    families = torch.empty(100, dtype=torch.int64).scatter(0, before, coarse)
    assert families.bincount().tolist() == [5] * 20
    assert torch.equal(families[after], coarse)
    assert noisy.description.switched_labels == int((before != after).sum())
    assert abs(noisy.description.switched_labels / 45_000 - 0.5) < 0.01


def test_snli():
    task = load("snli", data_dir=real_files("snli"), train_split="validation")
    assert task.description.sizes == {"train": 8858, "validation": 984, "test": 9824}  # 9,842 and 9,824 have a label
    premise, lengths, _, _ = next(task.batches("train", 64)).inputs
    assert premise.shape == (64, int(lengths.max()))
    assert (premise[:, 0] == task.vocabulary.index("<s>")).all()


@pytest.mark.parametrize(("name", "total", "positive"), [
    ("mushrooms", 8_124, 4_208),
    ("a9a", 32_561 + 16_281, 7_841 + 3_846),
    ("w8a", 49_749, 1_479),
    ("ijcnn1", 49_990 + 91_701, 4_853 + 8_712),
])  # fmt: skip
def test_libsvm(name, total, positive):
    task = load(name, data_dir=real_files("libsvm"))
    labels = torch.cat([split.labels for split in task.splits.values()])
    assert len(labels) == total
    assert int(labels.sum()) == positive
