"""A user's own data: images in class folders or parquet files, tables, and what is wrong with them."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from borat.lab.data import CorruptFileError, DataError, LabelError, MissingDataError, SchemaError, load
from data_files import encode, random_images, write_images


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BORAT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def pets(tmp_path):
    """Twenty cats, dark; ten dogs, light."""
    for name, shade, count in (("cat", 40, 20), ("dog", 200, 10)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((8, 6, 3), shade + number % 5, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{number:02}.png")
    return tmp_path / "pets"


def means(task, split):
    """The mean brightness of each example, between 0 and 255, and its label."""
    (batch,) = task.batches(split, 1000, shuffle=False)
    std, mean = (torch.tensor(values) * 255 for values in (task.description.std, task.description.mean))
    pixels = batch.inputs[0] * std[:, None, None] + mean[:, None, None]
    return pixels.mean((1, 2, 3)), batch.labels


def test_class_folders(pets):
    (pets / ".hidden").mkdir()
    (pets / "cat" / "notes.txt").write_text("no image")
    task = load("images", data_dir=pets)
    assert task.description.input_shape == (3, 8, 6)
    assert task.description.num_classes == 2
    assert task.description.sizes == {"train": 21, "validation": 3, "test": 6}
    for split in ("train", "validation", "test"):
        brightness, labels = means(task, split)
        assert set(labels.tolist()) == {0, 1}, "both classes in each split"
        assert torch.equal(brightness > 100, labels == 1), "dogs are light, and come after cats"
    assert load("images", data_dir=pets).description.checksum == task.description.checksum
    (pets / "cat" / "00.png").write_bytes(encode(np.zeros((8, 6, 3), np.uint8)))
    assert load("images", data_dir=pets).description.checksum != task.description.checksum


def test_folders_of_splits(tmp_path, pets):
    (tmp_path / "sets").mkdir()
    pets.rename(tmp_path / "sets" / "train")
    for name, shade in (("cat", 40), ("dog", 200)):
        (tmp_path / "sets" / "test" / name).mkdir(parents=True)
        Image.fromarray(np.full((8, 6), shade, np.uint8)).save(tmp_path / "sets" / "test" / name / "grey.png")
    with pytest.raises(SchemaError, match="different shapes"):
        load("images", data_dir=tmp_path / "sets")
    for name in ("cat", "dog"):
        path = tmp_path / "sets" / "test" / name / "grey.png"
        Image.open(path).convert("RGB").save(path)
    task = load("images", data_dir=tmp_path / "sets", validation_size=4)
    assert task.description.sizes == {"train": 26, "validation": 4, "test": 2}
    assert means(task, "test")[0].tolist() == pytest.approx([40, 200], abs=0.01)


def test_sizes_are_brought_together(pets):
    Image.new("L", (9, 9), 42).save(pets / "cat" / "odd.jpg")
    with pytest.raises(SchemaError, match=r"odd.jpg: the image has 9 . 9 pixels, the first one 6 . 8; give image_size"):
        load("images", data_dir=pets)
    task = load("images", data_dir=pets, image_size=4, flatten=True, train_limit=10)
    assert task.description.input_shape == (48,)
    assert task.description.sizes["train"] == 10


@pytest.mark.parametrize("as_struct", [True, False])
@pytest.mark.parametrize("names", [[3, 7], ["egg", "ham"]])
def test_parquet_with_other_columns(tmp_path, as_struct, names):
    images = random_images(30, (1, 5, 5))
    labels = [names[row % 2] for row in range(30)]
    if as_struct and names == [3, 7]:
        write_images(tmp_path / "train.parquet", images, "picture", {"kind": labels})
    else:
        contents = [encode(image) for image in images]
        column = [{"bytes": content} for content in contents] if as_struct else contents
        pq.write_table(pa.table({"picture": column, "kind": labels}), tmp_path / "everything.parquet")
    with pytest.raises(
        SchemaError,
        match=r"has no column 'image', only picture, kind; say with image_column and label_column which ones to read",
    ):
        load("images", data_dir=tmp_path)
    with pytest.raises(SchemaError, match="has no column 'label', only picture, kind; say with"):
        load("images", data_dir=tmp_path, image_column="picture")
    task = load("images", data_dir=tmp_path, image_column="picture", label_column="kind")
    assert task.description.input_shape == (1, 5, 5)
    assert task.description.sizes == {"train": 22, "test": 6, "validation": 2}
    assert f"{names[0]}, {names[1]}" in task.description.notes[0]
    split = task.split("train")
    for image, label in zip(split.images, split.labels, strict=True):
        (row,) = (images == image[0].numpy()).all((1, 2)).nonzero()[0]
        assert label == row % 2


def test_known_sets_with_other_columns(tmp_path):
    for split in ("train", "test"):
        write_images(tmp_path / f"{split}.parquet", random_images(20, (1, 28, 28)), "picture", {"kind": [1, 2] * 10})
    with pytest.raises(SchemaError, match=r"no column 'image', only picture, kind; say with image_column"):
        load("mnist", data_dir=tmp_path, validation_size=5)
    task = load("mnist", data_dir=tmp_path, validation_size=5, image_column="picture", label_column="kind")
    assert task.description.sizes == {"train": 15, "validation": 5, "test": 20}


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda f: (f / "cat" / "00.png").write_bytes(b"x"), CorruptFileError, r"00.png: the image cannot be decoded"),
        (lambda f: (f / "cat" / "00.png").write_bytes(b""), SchemaError, r"00.png is empty; it must be an image"),
        (lambda f: (f / "fox").mkdir(), DataError, r"fox holds no image; each folder in .*pets must be a class"),
        (
            lambda f: ((f / "fox").mkdir(), (f / "dog" / "00.png").rename(f / "fox" / "0.png")),
            LabelError,
            r"pets: a class needs at least 3 examples, for train and test and validation, but 'fox' has 1",
        ),
        (lambda f: [p.unlink() for p in f.glob("*/*")] + [p.rmdir() for p in f.glob("*")], MissingDataError, "nothing"),
        (lambda f: (f / "train.parquet").write_bytes(b"PAR1"), CorruptFileError, "not a complete parquet file"),
        (lambda f: (f / "test.parquet").write_bytes(b"PAR1"), MissingDataError, "no train.*only test.parquet"),
        (
            lambda f: pq.write_table(pa.table({"image": [1.5], "label": [0]}), f / "train.parquet"),
            SchemaError,
            r"column 'image' must hold encoded images \(bytes\), got double",
        ),
        (
            lambda f: pq.write_table(pa.table({"image": [b"", b""], "label": [0, None]}), f / "train.parquet"),
            LabelError,
            "column 'label', row 1 has no label",
        ),
        (
            lambda f: pq.write_table(pa.table({"image": [b""], "label": [0.5]}), f / "train.parquet"),
            SchemaError,
            "column 'label' must hold whole numbers or text, got double",
        ),
    ],
)
def test_bad_images(pets, change, kind, message):
    change(pets)
    with pytest.raises(kind, match=message):
        load("images", data_dir=pets)


def test_where_images_are_looked_for(tmp_path, pets):
    with pytest.raises(MissingDataError, match="images is a user's own data: give data_dir"):
        load("images")
    with pytest.raises(MissingDataError, match=r"nowhere does not exist; data_dir must be a folder that holds"):
        load("images", data_dir=tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"got the file .*00.png"):
        load("images", data_dir=pets / "cat" / "00.png")
    with pytest.raises(LabelError, match="must hold at least two classes, got cat"):
        load("images", data_dir=one_class(pets))
    with pytest.raises(DataError, match=r"image_column is for parquet files, of which .* has none"):
        load("images", data_dir=pets, image_column="picture")


def one_class(pets):
    pets = pets.rename(pets.with_name("one"))
    for path in (pets / "dog").iterdir():
        path.unlink()
    (pets / "dog").rmdir()
    (pets.with_name("pets") / "dog").mkdir(parents=True)
    return pets


@pytest.fixture
def flowers(tmp_path):
    source = np.random.default_rng(0)
    lines = ["width,height,constant,kind"]
    lines += [f"{source.normal(10 * (row % 3), 1):.3f},{row},7,{'abc'[row % 3]}" for row in range(60)]
    path = tmp_path / "flowers.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_csv(flowers):
    task = load("csv", data_dir=flowers, label_column="kind")
    assert (task.description.num_classes, task.description.input_shape) == (3, (3,))
    assert task.description.sizes == {"train": 42, "test": 12, "validation": 6}
    (batch,) = task.batches("train", 100, shuffle=False)
    features = batch.inputs[0]
    torch.testing.assert_close(features[:, :2].mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(features[:, :2].std(0, correction=0), torch.ones(2))
    assert not features[:, 2].any(), "a constant tells nothing, and divides by nothing"
    widths = [features[batch.labels == number, 0].mean() for number in range(3)]
    assert widths == sorted(widths)
    noisy = load("csv", data_dir=flowers, label_column="kind", label_noise=1.0)
    assert noisy.description.switched_labels == 42
    assert noisy.description.checksum == task.description.checksum


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda text: "", DataError, r"flowers.csv is empty; its first line must name the columns"),
        (lambda text: text.splitlines()[0], DataError, r"flowers.csv has no examples below the names"),
        (
            lambda text: text.replace("kind", "sort"),
            SchemaError,
            r"no column 'kind', only width, height, constant, sort;",
        ),
        (
            lambda text: text.replace(",5,7,", ",,7,"),
            SchemaError,
            r"line 7: column 'height' must hold finite numbers",
        ),
        (
            lambda text: text.replace(",5,7,", ",NaN,7,"),
            SchemaError,
            r"line 7: column 'height'.* got nothing",
        ),
        (lambda text: text.replace(",5,7,", ",inf,7,"), SchemaError, r"line 7: column 'height'.* got 'inf'"),
        (lambda text: text.replace(",5,7,", ",five,7,"), SchemaError, r"line 7: column 'height'.* got 'five'"),
        (lambda text: text.replace(",5,7,c", ",5,7,"), LabelError, r"line 7: column 'kind' has no class"),
        (lambda text: text.replace(",5,7,c", ",5,7,d"), LabelError, r"at least 3 examples.*but 'd' has 1"),
        (
            lambda text: text.replace(",", ";"),
            SchemaError,
            r"several columns with commas between them, got one",
        ),
        (lambda text: text.replace(",5,7,c", ",5,7,c,9,9"), CorruptFileError, r"flowers.csv is not a CSV file"),
    ],
)
def test_bad_tables(flowers, change, kind, message):
    flowers.write_text(change(flowers.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(kind, match=message):
        load("csv", data_dir=flowers, label_column="kind")


def test_bad_labels(flowers):
    with pytest.raises(SchemaError, match=r"no column 'label', only width.*; say with label_column which one holds"):
        load("csv", data_dir=flowers)
    with pytest.raises(LabelError, match=r"line 2: column 'width' must hold classes, which are whole numbers or text"):
        load("csv", data_dir=flowers, label_column="width")
    flowers.write_bytes("größe,label\n1,2\n".encode("latin-1"))
    with pytest.raises(CorruptFileError, match=r"flowers.csv must be text in UTF-8"):
        load("csv", data_dir=flowers)
    with pytest.raises(DataError, match="data_dir must be a CSV file for csv, got the folder"):
        load("csv", data_dir=flowers.parent)


def test_whole_numbers_are_classes(tmp_path):
    content = io.StringIO()
    content.write("x,label\n")
    content.writelines(f"{row},{[3.0, 10.0][row % 2]}\n" for row in range(20))
    (tmp_path / "numbers.csv").write_text(content.getvalue(), encoding="utf-8")
    task = load("csv", data_dir=tmp_path / "numbers.csv")
    assert task.description.notes == ("classes in the order of their numbers: 3, 10",)
