"""User tables: CSV files."""

from __future__ import annotations

import gzip
import io

import numpy as np
import pytest
import torch

from borat.lab.data import load
from borat.lab.data.errors import DataError


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
    assert not features[:, 2].any(), "a constant column becomes zero"
    widths = [features[batch.labels == number, 0].mean() for number in range(3)]
    assert widths == sorted(widths)
    noisy = load("csv", data_dir=flowers, label_column="kind", label_noise=1.0)
    assert noisy.description.switched_labels == 42
    assert noisy.description.checksum == task.description.checksum


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda text: "", DataError, r"flowers.csv must be a complete CSV file in UTF-8: No columns"),
        (lambda text: text.splitlines()[0], DataError, r"flowers.csv has no examples below the names"),
        (
            lambda text: text.replace("kind", "sort"),
            DataError,
            r"no column 'kind', only width, height, constant, sort;",
        ),
        (lambda text: text.replace(",5,7,", ",,7,"), DataError, r"line 7: column 'height' must hold finite numbers"),
        (lambda text: text.replace(",5,7,", ",NaN,7,"), DataError, r"line 7: column 'height'.* got 'NaN'"),
        (lambda text: text.replace(",5,7,", ",inf,7,"), DataError, r"line 7: column 'height'.* got 'inf'"),
        (lambda text: text.replace(",5,7,", ",five,7,"), DataError, r"line 7: column 'height'.* got 'five'"),
        (
            lambda text: text.replace(",5,7,c", ",5,7,"),
            DataError,
            r"line 7: column 'kind' must hold classes, .* got ''",
        ),
        (lambda text: text.replace(",5,7,c", ",5,7,d"), DataError, r"at least 3 examples.*but 'd' has 1"),
        (lambda text: text.replace(",", ";"), DataError, r"several columns, separated by commas, got one"),
        (
            lambda text: text.replace(",5,7,c", ",5,7,c,9,9"),
            DataError,
            r"flowers.csv must be a complete CSV file in UTF-8: .* Expected 4 fields in line 7, saw 6$",
        ),
        (
            lambda text: text.replace("width,", "", 1),
            DataError,
            r"Expected 3 fields in line 2, saw 4$",
        ),
        (lambda text: text.replace("width", "", 1), DataError, r"column 1 has no name; drop it"),
        (lambda text: text.replace("width", "kind", 1), DataError, r"several columns 'kind'; names must be unique"),
        (
            lambda text: text.replace("kind\n", "kind\n\n\n").replace(",5,7,", ",five,7,"),
            DataError,
            r"line 9: column 'height'.* got 'five'",
        ),
        (
            lambda text: text.replace(",5,7,c", ',5,7,"c'),
            DataError,
            r"flowers.csv must be a complete CSV file in UTF-8: .* inside string",
        ),
    ],
)
def test_bad_tables(flowers, change, kind, message):
    flowers.write_text(change(flowers.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(kind, match=message):
        load("csv", data_dir=flowers, label_column="kind")


def test_a_class_may_be_called_none(flowers):
    flowers.write_text(flowers.read_text().replace("7,a", "7,NA").replace("7,b", "7,None"))
    task = load("csv", data_dir=flowers, label_column="kind")
    assert task.description.notes == ("classes in the order of their numbers: NA, None, c",)


def test_large_numbers_keep_their_differences(tmp_path):
    """In float32, times in seconds are all equal and 1e39 overflows."""
    rows = [f"{1.7e9 + 10 * (row % 2)},{1e39 * (1 + row % 2)},{'ab'[row % 2]}" for row in range(20)]
    (tmp_path / "times.csv").write_text("\n".join(("time,large,label", *rows)))
    (batch,) = load("csv", data_dir=tmp_path / "times.csv").batches("train", 100)
    torch.testing.assert_close(batch.inputs[0], (2.0 * batch.labels - 1.0)[:, None].expand(-1, 2))


def test_compressed_table(flowers):
    packed = flowers.with_suffix(".csv.gz")
    packed.write_bytes(gzip.compress(flowers.read_bytes()))
    tasks = [load("csv", data_dir=path, label_column="kind") for path in (flowers, packed)]
    assert tasks[0].description.checksum == tasks[1].description.checksum
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"flowers.csv.gz must be a complete CSV file"):
        load("csv", data_dir=packed, label_column="kind")


def test_bad_labels(flowers):
    with pytest.raises(DataError, match=r"no column 'label', only width.*; set label_column to that of"):
        load("csv", data_dir=flowers)
    with pytest.raises(DataError, match=r"line 2: column 'width' must hold classes, which are whole numbers or text"):
        load("csv", data_dir=flowers, label_column="width")
    flowers.write_bytes("größe,label\n1,2\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"flowers.csv must be a complete CSV file in UTF-8"):
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
