"""The files of the experiments: complete, faithful to the paper, and checked when they are read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from borat.lab.baselines import make_loss, make_optimizer
from borat.lab.data import DATASETS
from borat.lab.methods import METHODS
from borat.lab.models import make_model
from borat.lab.reproduce.reading import experiments_folder, load_spec, read_spec, spec_names
from borat.lab.reproduce.training import TrainingSpec

TRAINED = [name for name in spec_names() if isinstance(load_spec(name), TrainingSpec)]

SMALL = """
title = "Small"
source = "Table 1"
question = "Does it work?"
kind = "table"
protocol = "Train."
[base]
epochs = 2
[grid]
lr = [0.1, 1.0]
[[columns]]
name = "A"
loss = "ce"
[[columns]]
name = "B"
loss = "hinge"
mini = { epochs = 7 }
[[methods]]
name = "SGD"
optimizer = "sgd"
weight_decay = 0.1
[[methods]]
name = "DFW"
optimizer = "dfw"
columns = ["B"]
lr = 5.0
mini = { grid = { lr = [6.0, 7.0] } }
[[cases]]
methods = ["SGD"]
columns = ["B"]
grid = { weight_decay = [0.2, 0.3] }
[paper]
"SGD" = { A = 90.0, B = { mean = 91.5, std = 0.2 } }
"SGD*" = { A = 89.0 }
[mini]
methods = ["SGD", "DFW"]
[mini.base]
epochs = 1
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "small.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_one_file_for_each_table_and_figure():
    sources = {name: load_spec(name).source for name in spec_names()}
    tables = {f"Table {n}" for n in (1, 2, 3, 4, 6, 7, 8)}  # Table 5 is the list of subproblems
    figures = {f"Figure {n}" for n in (4, 5, 6, 7, 8)}
    assert {re.match(r"(Table|Figure) \d", s).group() for s in sources.values() if "paper" not in s} == tables | figures
    assert sum(name.startswith("robustness-") and "paper" not in sources[name] for name in sources) == 6


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("scale", ["full", "mini"])
def test_every_configuration_can_be_built(name, scale):
    cells = load_spec(name).at(scale).plan()
    configs = {config for cell in cells for config in cell.configs}
    tiny = nn.Linear(2, 2)
    for data, model, dropout in {(c.data, c.model, c.dropout) for c in configs}:
        assert data in DATASETS
        shape = {"snli": (5, 3), "topics": (64,), "stdlib": (64,)}.get(data, (3, 32, 32))
        with torch.device("meta"):
            make_model(model, input_shape=shape, classes=10, dropout=dropout)
    for config in configs:
        make_optimizer(tiny, config)
        make_loss(config)


@pytest.mark.parametrize("name", spec_names())
def test_the_mini_scale_says_what_is_smaller(name):
    assert load_spec(name).mini.differences


# The protocol


def cell(name: str, method: str, column: str, scale: str = "full"):
    return next(c for c in load_spec(name).at(scale).plan() if (c.method, c.column) == (method, column))


def values(cell, key: str) -> list:
    return sorted({getattr(config, key) for config in cell.configs})


def test_robustness_grids():
    for name in (n for n in spec_names() if n.startswith("robustness-") and "fashion" not in n):
        for c in load_spec(name).at("full").plan():
            assert len(c.configs) == 20
            assert values(c, "radius") == [50, 100, 150, 200, 250]
            assert values(c, "lr") == [0.01, 0.1, 1, 10]
            assert (values(c, "epochs"), values(c, "batch_size"), values(c, "momentum")) == ([200], [128], [0.9])
            assert values(c, "model") == ["wrn-40-4"]
    assert values(cell("robustness-cifar100-noise50", "ALI-G", "CIFAR-100"), "label_noise") == [0.5]
    assert values(cell("robustness-cifar100-noise10", "ALI-G", "CIFAR-100"), "label_noise") == [0.1]
    assert values(cell("robustness-tiny-imagenet-hinge", "SGD", "Tiny ImageNet"), "loss") == ["hinge"]


INTERPOLATING = [n for n in spec_names() if n.startswith(("robustness-cifar100", "robustness-fashion"))]


@pytest.mark.parametrize("name", INTERPOLATING)
def test_mini_grids_have_all_methods_with_two_seeds(name):
    spec = load_spec(name)
    cells = spec.at("mini").plan()
    assert [c.method for c in cells] == ["SGD", "ALI-G", "BORAT3", "BORAT5", "FreeBORAT3"]
    for c in cells:
        assert (len(c.configs), values(c, "seed"), values(c, "lr")) == (24, [0, 1], [0.01, 0.1, 1, 10])
        assert len(values(c, "radius")) == 3
    assert METHODS["free-borat"].lr in values(cells[-1], "lr"), "what it is meant to be left at"


def test_cifar_grids():
    borat = cell("cifar", "BORAT5", "CIFAR-100 WRN")
    assert (values(borat, "radius"), values(borat, "lr")) == ([50, 75, 100], [0.1, 1])
    assert (values(borat, "batch_size"), values(borat, "epochs")) == ([128, 256, 512], [200])
    assert values(borat, "weight_decay") == [0]
    assert values(cell("cifar", "Yogi", "CIFAR-10 WRN"), "weight_decay") == [0.0001, 0.0005]
    dense = cell("cifar", "Yogi", "CIFAR-10 DN")
    assert (values(dense, "weight_decay"), values(dense, "epochs")) == ([0.0001], [300])
    assert values(dense, "batch_size") == [64, 128, 256]
    assert len(values(cell("cifar", "AdamW", "CIFAR-10 DN"), "weight_decay")) > 1
    assert values(cell("cifar", "DFW", "CIFAR-10 DN"), "loss") == ["smooth-hinge"]
    assert load_spec("cifar").at("full").seeds == (0, 1, 2)


def test_svhn_and_snli_protocols():
    sgd = cell("svhn", "SGD", "SVHN")
    assert values(sgd, "schedule") == ["manual"]
    assert (values(sgd, "epochs"), values(sgd, "dropout"), values(sgd, "model")) == ([160], [0.4], ["wrn-16-4"])
    assert values(cell("svhn", "BORAT3", "SVHN"), "radius") == [100]
    assert values(cell("svhn", "L4Adam", "SVHN"), "lr") == [0.0015, 0.015, 0.15]
    snli = load_spec("snli").at("full").plan()
    assert [c.column for c in snli if c.method == "DFW"] == ["SVM"]
    assert values(cell("snli", "SGD", "CE"), "schedule") == ["plateau"]
    assert {(c.epochs, c.batch_size, c.model) for s in snli for c in s.configs} == {(20, 64, "infersent")}
    assert {c.train_split for s in load_spec("snli").at("mini").plan() for c in s.configs} == {"validation"}


def test_comparisons_have_every_optimizer_at_its_recommended_rate():
    for name in ("compare-cifar100", "compare-fashion-mnist"):
        cells = load_spec(name).at("mini").plan()
        found = {c.configs[0].optimizer: c for c in cells}
        assert set(METHODS) - set(found) == {"heavy-ball", "nadamw", "schedule-free-adamw"}, "they are in others"
        for optimizer, c in found.items():
            assert METHODS[optimizer].lr in values(c, "lr")
        assert {len(c.configs) for c in cells} == {3}


# The paper's numbers


PAPER = json.loads((Path(__file__).parent / "paper_tables.json").read_text(encoding="utf-8"))
"""The paper's tables, by experiment, column and row; see the comment in the file."""


def numbers(spec, column: str) -> dict[str, float]:
    return {row: cells[column].mean for row, cells in spec.paper.items() if column in cells}


@pytest.mark.parametrize(("name", "count"), [
    ("cifar", 10), ("snli", 12), ("svhn", 12), ("tiny-imagenet", 5), ("runtime-cifar100", 10), ("runtime-imagenet", 3)
])  # fmt: skip
def test_numbers_are_the_papers(name, count):
    spec = load_spec(name)
    assert {column: numbers(spec, column) for column in PAPER[name]} == PAPER[name]
    assert set(PAPER[name]) == {column for cells in spec.paper.values() for column in cells}
    assert len({row for rows in PAPER[name].values() for row in rows}) == count


def test_variance_numbers_and_hyper_parameters():
    spec = load_spec("cifar-variance")
    assert len(PAPER["cifar-variance"]) == 12
    for row in PAPER["cifar-variance"]:
        published = spec.paper[row["method"]][row["column"]]
        assert (published.mean, published.std) == (row["mean"], row["std"])
        (config,) = cell("cifar-variance", row["method"], row["column"]).configs
        assert (config.lr, config.radius, config.batch_size) == (row["lr"], row["radius"], row["batch_size"])


def test_run_time_ratios_are_the_papers():
    seconds = numbers(load_spec("runtime-cifar100"), "seconds an epoch")
    assert [round(seconds[f"BORAT N={n}"] / seconds["SGD"], 2) for n in range(2, 11)] == [
        1.09, 1.34, 1.36, 1.46, 1.53, 1.62, 1.74, 1.85, 1.95,
    ]  # fmt: skip


# Reading


def test_layers_replace_what_is_below(tmp_path):
    spec = read_spec(write(tmp_path, SMALL))
    full, mini = spec.at("full").layers, spec.at("mini").layers
    common = {"seed": [0], "epochs": 2, "optimizer": "sgd", "lr": [0.1, 1.0]}
    assert full["SGD", "A"] == {**common, "loss": "ce", "weight_decay": 0.1}
    assert full["SGD", "B"] == {**common, "loss": "hinge", "weight_decay": [0.2, 0.3]}
    assert ("DFW", "A") not in full
    assert full["DFW", "B"]["lr"] == 5.0
    small = mini["DFW", "B"]
    assert (small["epochs"], small["lr"]) == (7, [6.0, 7.0]), "a column's mini table is over the common"
    assert mini["SGD", "A"]["epochs"] == 1
    assert spec.paper["SGD"]["B"].std == 0.2


@pytest.mark.parametrize(("old", "new", "message"), [
    ('kind = "table"', 'kind = "tabel"', "unknown kind 'tabel'; did you mean 'table'"),
    ('kind = "table"', 'kind = "table"\nmetric = "test_acuracy"', "unknown metric 'test_acuracy'; did you mean"),
    ("protocol =", "protocoll =", "unknown key 'protocoll'; did you mean 'protocol'"),
    ('question = "Does it work?"', "", "question"),
    ('question = "Does it work?"', "question = 3", "question must be of type str, got 3"),
    ('kind = "table"', 'kind = "table"\nseeds = 3', "seeds must be a list, got 3"),
    ('kind = "table"', 'kind = "table"\nseeds = []', "seeds must .*at least 1 item"),
    ('kind = "table"', 'kind = "runtime"', "unknown key 'base'"),
    ("epochs = 2", "epoch = 2", "base: unknown key 'epoch'; did you mean 'epochs'"),
    ("weight_decay = 0.1", "weight_deacy = 0.1", "methods.0: unknown key of SGD 'weight_deacy'; did you mean"),
    ("lr = [0.1, 1.0]", "lrr = [0.1]", "unknown key 'lrr'; did you mean 'lr'"),
    ("[grid]", "[gird]", "unknown key 'gird'; did you mean 'grid'"),
    ("[mini]", 'mini = "small"\n[x]', "unknown key 'x'"),
    ("lr = [0.1, 1.0]", "lr = 0.1", "lr of grid must be a list, got 0.1"),
    ('columns = ["B"]\nlr', 'columns = ["C"]\nlr', "unknown column 'C'"),
    ('methods = ["SGD"]', 'methods = ["SDG"]', "unknown method 'SDG'; did you mean 'SGD'"),
    ('methods = ["SGD", "DFW"]', 'method = ["SGD"]', "mini: unknown key 'method'; did you mean 'methods'"),
    ('"SGD*" = { A', '"SGD*" = { AA', "unknown column of the paper 'AA'; did you mean 'A'"),
    ('name = "SGD"', 'name = "SGD, manual"', "names without commas"),
    ("[[cases]]", "[cases]", "cases must be a list, got"),
    ("[mini]", '[[claims]]\ntext = "x"\nstatistic = "means"\n[mini]', "statistic must be 'value', 'best', 'mean' or"),
    ("[mini]", '[[claims]]\ntext = "x"\n[mini]', "needs an order"),
    ("[mini]", '[[claims]]\ntext = "x"\nmetric = "train_acc"\n[mini]', "unknown metric 'train_acc'; did you mean"),
    ("[mini]", '[[claims]]\ntext = "x"\nepoch = 2\nstatistic = "best"\n[mini]', "needs the statistic value"),
    ("[mini]", '[[claims]]\ntext = "x"\norder = ["SGD", "DWF"]\n[mini]', "unknown method 'DWF'; did you mean 'DFW'"),
])  # fmt: skip
def test_mistakes_are_explained(tmp_path, old, new, message):
    assert old in SMALL
    with pytest.raises(ValueError, match=message):
        read_spec(write(tmp_path, SMALL.replace(old, new, 1)))


def test_names_are_found_or_guessed():
    assert experiments_folder().name == "experiments"
    with pytest.raises(ValueError, match="unknown experiment 'snil'; did you mean 'snli'"):
        load_spec("snil")
    with pytest.raises(ValueError, match=r"none\.toml does not exist"):
        load_spec("none.toml")
