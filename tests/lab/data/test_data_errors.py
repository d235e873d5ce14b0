"""Data errors are raised before training and name the file and the column."""

from __future__ import annotations

import re

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from borat.lab.data import load
from borat.lab.data.errors import DataError, MissingDataError
from data_files import IMAGE, encode, random_images, use_hub, write_images, write_pairs


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BORAT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def mnist(tmp_path):
    """Return a folder with a valid data set."""
    for split in ("train", "test"):
        write_images(tmp_path / f"{split}.parquet", random_images(20, (1, 28, 28)), "image", {"label": [1] * 20})
    return tmp_path


def read(folder, name="mnist", **options):
    return load(name, data_dir=folder, **{"validation_size": 5, **options})


def write_table(path, **columns):
    pq.write_table(pa.table(columns), path)


def images(rows=20):
    return pa.array([{"bytes": encode(i), "path": None} for i in random_images(rows, (1, 28, 28))], IMAGE)


def test_errors_have_builtin_bases():
    assert issubclass(MissingDataError, FileNotFoundError)
    for kind in (DataError, DataError, DataError):
        assert issubclass(kind, DataError)
        assert issubclass(kind, ValueError)


@pytest.mark.parametrize(("name", "hint"), [
    ("cifar-100", "did you mean 'cifar100'"),
    ("Fashion_MNIST", "did you mean 'fashion_mnist'"),
    ("xyz", "known are digits, mnist"),
])  # fmt: skip
def test_unknown_name(name, hint):
    with pytest.raises(ValueError, match=f"unknown data set '{name}'; {hint}"):
        load(name)


@pytest.mark.parametrize(("options", "message"), [
    ({"label_noise": 1.5}, "label_noise must be at most 1, got 1.5"),
    ({"label_noise": -0.1}, "label_noise must be"),
    ({"label_noise": float("nan")}, "label_noise must be"),
    ({"seed": -1}, "seed must be at least 0, got -1"),
    ({"train_limit": 0}, "train_limit must be at least 1 or none, got 0"),
    ({"validation_size": 0}, "validation_size must be"),
    ({"augment": "yes"}, "augment must be of type bool, got 'yes'"),
    ({"glove": "file"}, "glove does not apply to digits"),
    ({"image_sise": 10}, "unknown option 'image_sise'; did you mean 'image_size'"),
    ({"validation_size": 5000}, "validation_size=5000 must be smaller than the 1438 training examples in scikit"),
])  # fmt: skip
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        load("digits", **options)


def test_missing_folder(tmp_path):
    with pytest.raises(MissingDataError, match=re.escape(f"{tmp_path / 'no'} does not exist; data_dir must be")):
        read(tmp_path / "no")


@pytest.mark.parametrize("split", ["train", "test"])
def test_missing_file(mnist, split):
    (mnist / f"{split}.parquet").unlink()
    with pytest.raises(MissingDataError, match=rf"mnist needs {split}\*\.parquet in one of .*files of 'ylecun/mnist'"):
        read(mnist)


def test_missing_part(mnist):
    (mnist / "train.parquet").rename(mnist / "train-00000-of-00002.parquet")
    with pytest.raises(MissingDataError, match=r"train-00001-of-00002\.parquet is missing"):
        read(mnist)
    (mnist / "train-00000-of-00002.parquet").rename(mnist / "train-00001-of-00002-0a1b.parquet")
    with pytest.raises(MissingDataError, match=r"train-00000-of-00002-0a1b\.parquet is missing"):
        read(mnist)
    (mnist / "train-00001-of-00002-0a1b.parquet").rename(mnist / "train-00000-of-00001.parquet")
    assert read(mnist).description.sizes["train"] == 15


@pytest.mark.parametrize("other", ["train.parquet", "train_backup.parquet", "train-00000-of-00003.parquet"])
def test_files_that_do_not_belong_together(mnist, other):
    part = mnist / "train-00000-of-00001.parquet"
    part.write_bytes((mnist / "train.parquet").read_bytes())
    (mnist / "train.parquet").rename(mnist / other)
    with pytest.raises(DataError, match=r"holds files that do not belong together: train"):
        read(mnist)


def test_files_in_the_hubs_own_folders(tmp_path):
    for split in ("train", "test", "extra"):
        path = tmp_path / "cropped_digits" / f"{split}-00000-of-00001.parquet"
        write_images(path, random_images(20, (3, 32, 32)), "image", {"label": [1] * 20})
    assert read(tmp_path, "svhn").description.sizes["train"] == 35
    for split in ("train", "test"):
        path = tmp_path / "ten" / "plain_text" / f"{split}-00000-of-00001.parquet"
        write_images(path, random_images(20, (3, 32, 32)), "img", {"label": [1] * 20})
    assert read(tmp_path / "ten", "cifar10").description.sizes["train"] == 15


def test_missing_extra_file(tmp_path):
    for split in ("train", "test"):
        write_images(tmp_path / f"{split}.parquet", random_images(20, (3, 32, 32)), "image", {"label": [1] * 20})
    with pytest.raises(MissingDataError, match=r"svhn needs extra\*\.parquet"):
        read(tmp_path, "svhn")


def test_column_twice(mnist):
    table = pq.read_table(mnist / "train.parquet")
    pq.write_table(table.append_column("label", table["label"]), mnist / "train.parquet")
    with pytest.raises(DataError, match=r"train\.parquet has several columns 'label'"):
        read(mnist)


def test_missing_column(mnist):
    write_table(mnist / "test.parquet", img=images(), label=[1] * 20)
    with pytest.raises(DataError, match=r"test\.parquet has no column 'image', only img, label"):
        read(mnist)


@pytest.mark.parametrize(("columns", "message"), [
    ({"image": ["x"] * 20, "label": [1] * 20}, r"column 'image', row 0: .* hold encoded images \(bytes\), got str"),
    ({"image": images(), "label": [1.0] * 20}, r"column 'label', row 0: the column must hold integers, got float"),
    ({"image": images(), "label": ["1"] * 20}, r"column 'label', row 0: the column must hold integers, got str"),
])  # fmt: skip
def test_wrong_type(mnist, columns, message):
    write_table(mnist / "train.parquet", **columns)
    with pytest.raises(DataError, match=rf"train\.parquet: {message}"):
        read(mnist)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_truncated_file(mnist, share):
    path = mnist / "train.parquet"
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match=r"train\.parquet is not a complete parquet file"):
        read(mnist)


def test_damage_in_the_middle(mnist):
    """The footer is intact, the pages are not."""
    path = mnist / "train.parquet"
    content = bytearray(path.read_bytes())
    content[4:3000] = b"\xff" * 2996
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"train\.parquet"):
        read(mnist)


def test_no_rows(mnist):
    write_table(mnist / "train.parquet", image=images(0), label=pa.array([], pa.int64()))
    with pytest.raises(DataError, match=r"train\.parquet has no rows"):
        read(mnist)


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("label", [10, -1])
def test_label_out_of_range(mnist, label, names):
    labels = [1] * 20
    labels[13] = label
    write_images(mnist / "test.parquet", random_images(20, (1, 28, 28)), "image", {"label": labels}, names=names)
    with pytest.raises(DataError, match=rf"test\.parquet: column 'label', row 13: the label {label} is not in 0 … 9"):
        read(mnist)


def test_label_missing(mnist):
    write_table(mnist / "train.parquet", image=images(), label=[1] * 19 + [None])
    with pytest.raises(DataError, match=r"train\.parquet: column 'label', row 19: .* must hold integers, got nothing"):
        read(mnist)


def test_bad_images(mnist):
    good = encode(random_images(1, (1, 28, 28))[0])
    for content, kind, message in (
        (b"not an image", DataError, "row 2: the image cannot be decoded"),
        (good[:200], DataError, "row 2: the image cannot be decoded"),
        (None, DataError, r"row 2: the column must hold encoded images \(bytes\), got nothing"),
        (b"", DataError, "row 2 is empty; it must be an image"),
        (encode(np.zeros((28, 30), np.uint8)), DataError, "row 2: the image has 30 x 28 pixels, expected 28 x 28"),
    ):
        contents = [good, good, content, *[good] * 17]
        structs = pa.array([{"bytes": c, "path": None} for c in contents], IMAGE)
        write_table(mnist / "train.parquet", image=structs, label=[1] * 20)
        with pytest.raises(kind, match=rf"train\.parquet: column 'image', {message}"):
            read(mnist)


def test_validation_larger_than_train(mnist):
    with pytest.raises(DataError, match=r"validation_size=20 must be smaller than the 20 training .*train\.parquet"):
        read(mnist, validation_size=20)
    with pytest.raises(DataError, match="validation_size=10000 must be"):
        read(mnist, validation_size=None)


def test_validation_size_of_a_set_with_a_validation_split(tmp_path):
    for split in ("train", "valid"):
        write_images(tmp_path / f"{split}.parquet", random_images(9, (3, 64, 64)), "image", {"label": [1] * 9})
    with pytest.raises(DataError, match="tiny_imagenet has its own validation set"):
        read(tmp_path, "tiny_imagenet")


def test_class_in_two_superclasses(tmp_path):
    for split in ("train", "test"):
        labels = {"fine_label": [7] * 20, "coarse_label": [3] * 10 + [4] * 10}
        write_images(tmp_path / f"{split}.parquet", random_images(20, (3, 32, 32)), "img", labels)
    with pytest.raises(DataError, match=r"train\.parquet: class 7 appears with more than one super-class"):
        read(tmp_path, "cifar100")


def test_hub_out_of_reach(monkeypatch):
    def load_dataset(*arguments, **options):
        raise ConnectionError("no network")

    use_hub(monkeypatch, load_dataset)
    for name, hub in (("cifar10", "uoft-cs/cifar10"), ("imagenet", "ILSVRC/imagenet-1k"), ("snli", "stanfordnlp/snli")):
        with pytest.raises(MissingDataError, match=f"cannot load '{hub}', split 'train', .*no network.*set data_dir"):
            load(name)


def test_hub_with_another_schema(monkeypatch):
    use_hub(monkeypatch, lambda *a, **o: datasets.Dataset.from_dict({"text": ["a"]}))
    with pytest.raises(DataError, match="hub 'ylecun/mnist', split 'train' has no column 'image', only text"):
        load("mnist")


# SNLI

PAIR = ("A man.", "A person.", 0)


def write_snli(folder, **splits):
    for split in ("train", "validation", "test"):
        write_pairs(folder / f"{split}.parquet", splits.get(split, [PAIR] * 5))
    return folder


def test_snli_label_out_of_range(tmp_path):
    write_snli(tmp_path, test=[PAIR, ("a", "b", 3)])
    with pytest.raises(DataError, match=r"test\.parquet: column 'label', row 1: the label 3 is not in -1 … 2"):
        load("snli", data_dir=tmp_path)


def test_snli_wrong_schema(tmp_path):
    write_snli(tmp_path)
    write_table(tmp_path / "validation.parquet", premise=["a"], hypothesis=[1], label=[0])
    with pytest.raises(
        DataError, match=r"validation\.parquet: column 'hypothesis', row 0: .* must hold strings, got int"
    ):
        load("snli", data_dir=tmp_path)
    write_table(tmp_path / "validation.parquet", premise=["a", None], hypothesis=["b", "c"], label=[0, 0])
    with pytest.raises(DataError, match=r"validation\.parquet: column 'premise', row 1: .* got nothing"):
        load("snli", data_dir=tmp_path)


def test_snli_train_split(tmp_path):
    with pytest.raises(DataError, match="train_split must be 'train' or 'validation', got 'test'"):
        load("snli", data_dir=write_snli(tmp_path), train_split="test")


@pytest.mark.parametrize(("content", "message"), [
    (None, "does not exist"),
    ("a 1 2\nman 1\n", "line 2: expected a word and 2 numbers"),
    ("a 1 2\nman 1 x\n", "line 2: could not convert"),
    ("zebra 1 2\n", "has no vector for any of the"),
    ("a\n", "line 1: expected a word and 0 numbers"),
    (b"\xff\xfe\x00 1 2\n", "codec can't decode"),
])  # fmt: skip
def test_bad_word_vectors(tmp_path, content, message):
    path = tmp_path / "glove.txt"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((DataError, MissingDataError), match=rf"glove\.txt.*{message}"):
        load("snli", data_dir=write_snli(tmp_path), glove=str(path))


# LIBSVM and the rest


@pytest.mark.parametrize(("content", "kind", "message"), [
    (b"+1 1:1\n-1 2:x\n", DataError, "is not a complete LIBSVM file of 123 features"),
    (b"+1 1:1\n-1 124:1\n", DataError, "is not a complete LIBSVM file of 123 features"),
    (b"+1 1:1\n-1 2:nan\n", DataError, "line 2: a feature is not a finite number"),
    (b"+1 1:1\n-1 2:1\n", DataError, "a9a has no examples for the split"),
    (b"", DataError, "a9a"),
    (b"1 1:1\n2 2:1\n3 2:1\n", DataError, r"line 2: the label 2 is not one of \(-1, 1\)"),
])  # fmt: skip
def test_bad_libsvm_file(tmp_path, content, kind, message):
    (tmp_path / "a9a").write_bytes(content)
    with pytest.raises(kind, match=message):
        load("a9a", data_dir=tmp_path)


def test_truncated_bzip2(tmp_path):
    import bz2

    (tmp_path / "a9a.bz2").write_bytes(bz2.compress(b"+1 1:1\n-1 2:1\n" * 1000)[:60])
    with pytest.raises(DataError, match=r"a9a\.bz2 is not a complete LIBSVM file"):
        load("a9a", data_dir=tmp_path)


def test_libsvm_test_labels(tmp_path):
    (tmp_path / "a9a").write_text("+1 1:1\n-1 2:1\n" * 10)
    (tmp_path / "a9a.t").write_text("+1 1:1\n0 2:1\n")
    with pytest.raises(DataError, match=r"a9a\.t, line 2: the label 0 is not one of \(-1, 1\)"):
        load("a9a", data_dir=tmp_path)


def test_missing_libsvm_file(tmp_path):
    with pytest.raises(MissingDataError, match=r"has none of w8a, w8a\.txt, w8a\.bz2"):
        load("w8a", data_dir=tmp_path)
    with pytest.raises(
        MissingDataError, match="no does not exist; data_dir must be a folder of its files from LIBSVM's page for w8a"
    ):
        load("w8a", data_dir=tmp_path / "no")
    with pytest.raises(MissingDataError, match="w8a is read from local files"):
        load("w8a")


def test_noise_without_classes():
    for name in ("repeat_copy", "text", "imagenet"):
        with pytest.raises(ValueError, match=f"label_noise does not apply to {name}"):
            load(name, label_noise=0.1)
