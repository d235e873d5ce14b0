"""User images in class folders or parquet files, and their errors."""

from __future__ import annotations

import io
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import ExifTags, Image, ImageOps

from borat.lab.data import load
from borat.lab.data.errors import DataError, MissingDataError
from data_files import encode, random_images, write_images


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BORAT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def pets(tmp_path):
    """Write twenty dark cats and ten light dogs; return their folder."""
    for name, shade, count in (("cat", 40, 20), ("dog", 200, 10)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((8, 6, 3), shade + number % 5, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{number:02}.png")
    return tmp_path / "pets"


def means(task, split):
    """Return the mean brightness of each example, between 0 and 255, and its label."""
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
    task = load("images", data_dir=tmp_path / "sets", validation_size=4)
    assert task.description.sizes == {"train": 26, "validation": 4, "test": 2}
    assert task.description.input_shape == (3, 8, 6), "in colour, because the training split is"
    assert means(task, "test")[0].tolist() == pytest.approx([40, 200], abs=0.01)
    for name in ("cat", "dog"):
        Image.new("L", (9, 7)).save(tmp_path / "sets" / "test" / name / "grey.png")
    with pytest.raises(
        DataError, match=r"grey.png: the image has 9 x 7 pixels, expected 6 x 8, as the first image; set image_size"
    ):
        load("images", data_dir=tmp_path / "sets")


STEPS = np.arange(48, dtype=np.uint16).reshape(8, 6) * 1394
RED = (200, 10, 20)


def picture(mode, pixels, **info):
    made = Image.frombytes(mode, (pixels.shape[1], pixels.shape[0]), pixels.tobytes())
    made.info.update(info)
    return made


def palette(**info):
    made = Image.new("P", (6, 8))
    made.putpalette(RED)
    made.info.update(info)
    return made


def only_image(pets, content):
    """Return the pixels of an encoded image as they are loaded, (channels, height, width)."""
    for number, path in enumerate(sorted(pets.glob("*/*.png"))):
        path.write_bytes(content)
        os.utime(path, (number, number))
    (first, *_) = load("images", data_dir=pets).split("train").tensors[0]
    return first.numpy()


def saved(made, kind, **options):
    out = io.BytesIO()
    made.save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("made", "kind", "expected"),
    [
        (picture("I;16", STEPS), "PNG", [np.rint(STEPS / 257)]),
        (picture("I;16B", STEPS.astype(">u2")), "TIFF", [np.rint(STEPS / 257)]),
        (picture("I", STEPS.astype(np.int32)), "TIFF", [np.rint(STEPS / 257)]),
        (picture("I;16", STEPS, transparency=0), "PNG", [np.where(STEPS == 0, 255, np.rint(STEPS / 257))]),
        (Image.new("RGBA", (6, 8), (*RED, 51)), "PNG", [244, 206, 208]),
        (Image.new("LA", (6, 8), (100, 51)), "PNG", [224]),
        (Image.new("LA", (6, 8), (100, 255)), "PNG", [100]),
        (picture("L", np.full((8, 6), 7, np.uint8), transparency=7), "PNG", [255]),
        (Image.new("RGB", (6, 8), RED), "PNG", RED),
        (palette(), "PNG", RED),
        (palette(transparency=0), "PNG", [255, 255, 255]),
        (palette(transparency=b"\x33"), "PNG", [244, 206, 208]),
    ],
)
def test_pixels_are_loaded_as_shown(pets, made, kind, expected):
    """16-bit greyscale becomes 8-bit, and transparency is flattened onto white."""
    content = saved(made, kind, **({"transparency": made.info["transparency"]} if made.info else {}))
    expected = np.stack([np.broadcast_to(channel, (8, 6)) for channel in expected])
    np.testing.assert_array_equal(only_image(pets, content), expected)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_upright(pets, orientation, kind):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    made = Image.fromarray(random_images(1, (3, 8, 6))[0])
    content = saved(made, kind, exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content)))).transpose(2, 0, 1)
    assert (orientation == 1) == np.array_equal(expected, np.asarray(made).transpose(2, 0, 1))
    np.testing.assert_array_equal(only_image(pets, content), expected)


def test_invalid_exif_besides_the_orientation(pets):
    exif = Image.Exif()
    exif.update({ExifTags.Base.Orientation: 6, ExifTags.Base.XResolution: 72.0})
    wrong = exif.tobytes().replace(b"\x01\x1a\0\x05", b"\x01\x1a\0\x02")  # a resolution as text
    content = saved(Image.new("L", (6, 8)), "PNG", exif=wrong)
    with pytest.raises(TypeError):
        ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    assert only_image(pets, content).shape == (1, 6, 8)


@pytest.mark.parametrize("exif", [b"garbage!", b"II*\0"])
def test_damaged_exif_is_ignored(pets, exif):
    np.testing.assert_array_equal(only_image(pets, saved(Image.new("L", (6, 8), 9), "PNG", exif=exif)), 9)


def test_the_cache_of_another_version_is_not_used(pets, monkeypatch):
    expected = only_image(pets, saved(Image.new("LA", (6, 8), (100, 51)), "PNG"))
    for kept in Path(os.environ["BORAT_CACHE"]).iterdir():
        torch.save({"images": torch.zeros(30, 1, 8, 6, dtype=torch.uint8)}, kept)
    assert not load("images", data_dir=pets).split("train").tensors[0].any(), "from the cache"
    monkeypatch.setattr("borat.lab.data.cache.VERSION", 0)
    np.testing.assert_array_equal(load("images", data_dir=pets).split("train").tensors[0][0], expected)


def move_into(folder, *names):
    """Copy the classes of a folder into each of these splits."""
    classes = folder.rename(folder.with_name("classes"))
    for name in names:
        shutil.copytree(classes, folder / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda f: move_into(f, "test", "val"),
            r"must hold one folder for train, .* because val, test contain folders .*, got test, val\. If",
        ),
        (
            lambda f: move_into(f, "images", "test"),
            r"because test contain folders and are read as splits, got images, test\.",
        ),
        (
            lambda f: move_into(f, "train", "evaluation"),
            r"because train contain folders .*, got evaluation, train\.",
        ),
        (
            lambda f: move_into(f, "train", "bus/red", "tram/red"),
            r"pets must hold one folder for train, and at most one for val and test, because train contain folders and "
            r"are read as splits, got bus, train, tram\. If all folders are classes, rename train",
        ),
        (
            lambda f: [(f / name).write_bytes(b"") for name in ("train.parquet", "more.parquet", "test.parquet")],
            r"pets: beside train.parquet, file names must begin with train, val or test, got more.parquet",
        ),
    ],
)
def test_folders_and_files_that_match_no_split(pets, change, message):
    change(pets)
    with pytest.raises(DataError, match=message):
        load("images", data_dir=pets)


def test_classes_named_like_splits(pets):
    (pets / "cat").rename(pets / "testudo")
    (pets / "dog").rename(pets / "valley")
    shutil.copytree(pets / "valley", pets / "train")
    task = load("images", data_dir=pets)
    assert task.description.notes == ("classes in the order of their numbers: testudo, train, valley",)


def test_skipped_files_are_noted(pets, caplog):
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._00.png", ".checkpoints/00.png"):
        (pets / "cat" / name).parent.mkdir(exist_ok=True)
        (pets / "cat" / name).write_text("system file")
    (pets / "__MACOSX").mkdir()
    assert len(load("images", data_dir=pets).description.notes) == 1
    (pets / "cat" / "7.heic").write_text("unknown")
    expected = f"skipped 1 file, such as {pets / 'cat' / '7.heic'}: only images in the folder of a class are read"
    with caplog.at_level("INFO", "borat.lab"):
        assert load("images", data_dir=pets).description.notes[1] == expected
    assert caplog.messages == [expected]
    (pets / "dog" / "8").write_text("without a suffix")
    shutil.copy(pets / "dog" / "00.png", pets / "loose.png")
    task = load("images", data_dir=pets)
    assert task.description.notes[1].startswith(f"skipped 3 files, such as {pets / 'cat' / '7.heic'}")
    assert task.description.sizes == {"train": 21, "validation": 3, "test": 6}


def test_images_of_different_sizes(pets):
    Image.new("L", (9, 9), 42).save(pets / "cat" / "odd.jpg")
    with pytest.raises(
        DataError, match=r"odd.jpg: the image has 9 x 9 pixels, expected 6 x 8, as the first image; set"
    ):
        load("images", data_dir=pets)
    task = load("images", data_dir=pets, image_size=4, train_limit=10)
    assert task.description.input_shape == (3, 4, 4)
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
        DataError,
        match=r"has no column 'image', only picture, kind; set image_column and label_column to read others",
    ):
        load("images", data_dir=tmp_path)
    with pytest.raises(DataError, match="has no column 'label', only picture, kind; set"):
        load("images", data_dir=tmp_path, image_column="picture")
    task = load("images", data_dir=tmp_path, image_column="picture", label_column="kind")
    assert task.description.input_shape == (1, 5, 5)
    assert task.description.sizes == {"train": 22, "test": 6, "validation": 2}
    assert f"{names[0]}, {names[1]}" in task.description.notes[0]
    split = task.split("train")
    for image, label in zip(split.tensors[0], split.labels, strict=True):
        (row,) = (images == image[0].numpy()).all((1, 2)).nonzero()[0]
        assert label == row % 2


def test_categories(tmp_path):
    labels = pa.array(["ham", "egg"] * 15).dictionary_encode()
    contents = [encode(image) for image in random_images(30, (1, 5, 5))]
    pq.write_table(pa.table({"image": contents, "label": labels}), tmp_path / "train.parquet")
    task = load("images", data_dir=tmp_path)
    assert "egg, ham" in task.description.notes[0]
    assert torch.bincount(task.split("train").labels).tolist() == [11, 11]


def test_integers_and_strings_as_labels(tmp_path):
    for name, labels in (("train-1", [0, 1]), ("train-2", ["0", "1"])):
        pq.write_table(pa.table({"image": [b"", b""], "label": labels}), tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match="the labels must be all integers or all strings, got both"):
        load("images", data_dir=tmp_path)


@pytest.mark.parametrize("column", ["image", "label"])
def test_damage_under_an_intact_footer(tmp_path, column):
    path = tmp_path / "train.parquet"
    contents = [encode(image) for image in random_images(30, (1, 5, 5))]
    pq.write_table(pa.table({"image": contents, "label": ["egg", "ham"] * 15}), path)
    footer, content = pq.read_metadata(path), bytearray(path.read_bytes())
    (chunk,) = (c for c in map(footer.row_group(0).column, range(2)) if c.path_in_schema == column)
    start = chunk.dictionary_page_offset
    content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"train.parquet: column '{column}' is damaged: .+$"):
        load("images", data_dir=tmp_path)


def huge(content):
    """Return a BMP whose header declares more pixels than it has."""
    return content[:18] + struct.pack("<ii", 20_000, 20_000) + content[26:]


def test_known_sets_with_other_columns(tmp_path):
    for split in ("train", "test"):
        write_images(tmp_path / f"{split}.parquet", random_images(20, (1, 28, 28)), "picture", {"kind": [1, 2] * 10})
    with pytest.raises(DataError, match=r"no column 'image', only picture, kind; set image_column"):
        load("mnist", data_dir=tmp_path, validation_size=5)
    task = load("mnist", data_dir=tmp_path, validation_size=5, image_column="picture", label_column="kind")
    assert task.description.sizes == {"train": 15, "validation": 5, "test": 20}


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda f: (f / "cat" / "00.png").write_bytes(b"x"), DataError, r"00.png: the image cannot be decoded"),
        (lambda f: (f / "cat" / "00.png").write_bytes(b""), DataError, r"00.png is empty; it must be an image"),
        (
            lambda f: (f / "cat" / "00.png").write_bytes(huge(saved(Image.new("L", (6, 8)), "BMP"))),
            DataError,
            r"00.png: the image cannot be decoded: .*exceeds limit",
        ),
        (
            lambda f: (f / "cat" / "00.png").write_bytes(saved(Image.new("F", (6, 8), 0.5), "TIFF")),
            DataError,
            r"00.png: .* its mode is F, with values from 0.5 to 0.5; allowed are 8 bits per channel, or greyscale",
        ),
        (
            lambda f: (f / "cat" / "00.png").write_bytes(saved(Image.new("I", (6, 8), 65536), "TIFF")),
            DataError,
            r"00.png: .* its mode is I, with values from 65536 to 65536; allowed are .* integers in 0 … 65535",
        ),
        (
            lambda f: (f / "cat" / "00.png").write_bytes(saved(Image.new("I", (6, 8), -1), "TIFF")),
            DataError,
            r"00.png: .* its mode is I, with values from -1 to -1; allowed are",
        ),
        (lambda f: (f / "fox").mkdir(), DataError, r"fox holds no image; each folder in .*pets must be a class"),
        (
            lambda f: ((f / "fox").mkdir(), (f / "dog" / "00.png").rename(f / "fox" / "0.png")),
            DataError,
            r"pets: a class needs at least 3 examples, for train and test and validation, but 'fox' has 1",
        ),
        (lambda f: [p.unlink() for p in f.glob("*/*")] + [p.rmdir() for p in f.glob("*")], MissingDataError, "nothing"),
        (lambda f: (f / "train.parquet").write_bytes(b"PAR1"), DataError, "not a complete parquet file"),
        (lambda f: (f / "test.parquet").write_bytes(b"PAR1"), MissingDataError, "no train.*only test.parquet"),
        (
            lambda f: pq.write_table(pa.table({"image": [1.5], "label": [0]}), f / "train.parquet"),
            DataError,
            r"column 'image', row 0: the column must hold encoded images \(bytes\), got float",
        ),
        (
            lambda f: pq.write_table(pa.table({"image": [b"", b""], "label": [0, None]}), f / "train.parquet"),
            DataError,
            "column 'label', row 1: the column must hold integers or strings, got nothing",
        ),
        (
            lambda f: pq.write_table(pa.table({"image": [b""], "label": [0.5]}), f / "train.parquet"),
            DataError,
            "column 'label', row 0: the column must hold integers or strings, got float",
        ),
    ],
)
def test_bad_images(pets, change, kind, message):
    change(pets)
    with pytest.raises(kind, match=message):
        load("images", data_dir=pets)


def test_bad_folders(tmp_path, pets):
    with pytest.raises(MissingDataError, match="images is read from local files: set data_dir"):
        load("images")
    with pytest.raises(MissingDataError, match=r"nowhere does not exist; data_dir must be a folder that holds"):
        load("images", data_dir=tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"got the file .*00.png"):
        load("images", data_dir=pets / "cat" / "00.png")
    with pytest.raises(DataError, match="must hold at least two classes, got cat"):
        load("images", data_dir=one_class(pets))
    with pytest.raises(DataError, match=r"image_column is for parquet files, but .* has none"):
        load("images", data_dir=pets, image_column="picture")


def one_class(pets):
    pets = pets.rename(pets.with_name("one"))
    for path in (pets / "dog").iterdir():
        path.unlink()
    (pets / "dog").rmdir()
    (pets.with_name("pets") / "dog").mkdir(parents=True)
    return pets
