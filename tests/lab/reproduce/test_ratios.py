"""Ratios to a tuned reference: the table's arithmetic, and an experiment from end to end."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from borat.lab.config import RunConfig
from borat.lab.methods import METHODS
from borat.lab.reproduce.kinds.ratios import condition_of, ratio_tables, summarise
from borat.lab.reproduce.reading import load_spec, read_spec
from borat.lab.sweeps.engines import make_engine
from borat.lab.tasks import TASKS
from engines import Inline

TINY = """
title = "Tiny"
source = "not in the paper"
question = "Does it work?"
kind = "ratios"
reference = "AdamW"
protocol = "Train."
[base]
steps = 5
[[columns]]
name = "line"
task = "vae"
[[methods]]
name = "AdamW"
optimizer = "adamw"
grid = { lr = [0.001, 0.01] }
[[methods]]
name = "SGD"
optimizer = "sgd"
lr = 1e30
[[methods]]
name = "AdamW: shifted"
optimizer = "adamw"
grid = { lr = [0.001, 0.01] }
shift = 10.0
[mini]
differences = ["None."]
"""


def test_a_summary_counts_what_is_near():
    summary = summarise(pd.DataFrame({"a": [1.05], "b": [1.06], "c": [0.5], "d": [math.inf]})).iloc[0]
    assert (summary.near, summary.tasks, summary.task) == (2, 4, "d")
    assert summary["median"] == pytest.approx(1.055)
    assert summary["mean"] == summary.worst == math.inf


def test_tables_have_a_row_for_each_method_and_a_column_for_each_condition():
    rows = {("A", "plain"): [1.0, 1.0], ("B", "plain"): [0.5, 2.0], ("B", "loss + 10"): [1.0, 100.0]}
    summary, means = ratio_tables("Title", pd.DataFrame(rows, index=["x", "y"]).T)
    assert summary.rows[0] == ("A", "plain", "1.000", "1.000", "1.000, x", "2 of 2")
    assert summary.rows[1] == ("B", "plain", "1.250", "1.000", "2.000, y", "1 of 2")
    assert summary.rows[2] == ("B", "loss + 10", "50.500", "10.000", "100, y", "1 of 2")
    assert means.head == ("method", "plain", "loss + 10")
    assert means.rows == [("A", "1.000", "-"), ("B", "1.000", "10")]


def test_conditions_have_names():
    conditions = [condition_of(RunConfig(task="vae", **keys)) for keys in ({}, {"shift": 10.0}, {"clip": 0.1})]
    assert conditions == ["plain", "loss + 10", "gradients clipped at 0.1"]


def test_an_experiment_from_end_to_end(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    result = read_spec(path).at("full").run(tmp_path / "runs", engine=make_engine(workers=1))
    summary, means, _, shifted, rates = result.tables
    assert [row[:2] for row in summary.rows] == [("AdamW", "plain"), ("SGD", "plain"), ("AdamW", "loss + 10")]
    assert means.rows[0] == ("AdamW", "1.000", "1.000"), "AdamW does not see the loss"
    assert means.rows[1] == ("SGD", "inf", "-"), "it diverged"
    assert shifted.rows == [("line", "1.000")]
    assert rates.rows[0][0] == "line"
    assert not result.failures()


def test_the_zoo_has_every_task_under_every_condition():
    study = load_spec("zoo").at("full")
    cells = study.plan()
    assert study.seeds == (0, 1, 2)
    assert {cell.column for cell in cells} == set(TASKS)
    found = {(cell.method.partition(":")[0], condition_of(cell.configs[0])) for cell in cells}
    conditions = {"plain", "loss + 10", "loss - 3", "gradients clipped at 0.1"}
    for method in ("FreeBORAT3", "AdamW"):
        assert {condition for name, condition in found if name == method} == conditions
    plain = {cell.method: cell.configs for cell in cells if condition_of(cell.configs[0]) == "plain"}
    assert [len(configs) for configs in plain.values()] == [1, 1, 1, 1, 6, 1, 1, 1]
    assert list(plain) == [
        *("FreeBORAT2", "FreeBORAT3", "FreeBORAT5", "AdamW", "AdamW cosine"),
        *("Schedule-Free AdamW", "Prodigy", "MoMo-Adam"),
    ]
    for method, configs in plain.items():
        assert len(configs) > 1 or configs[0].lr == METHODS[configs[0].optimizer].lr, f"{method} is at its default"
    assert plain["AdamW"][0].lr == 0.001


def test_the_zoo_runs_every_method(tmp_path):
    study = load_spec("zoo").at("mini", columns=["factorisation"], changes={"steps": 10})
    result = study.run(tmp_path, engine=Inline())
    assert {cell.cell.method: cell.status for cell in result.cells} == dict.fromkeys(result.methods, "finished")
    summary, *_ = result.tables
    rows = {row[:2]: row[2:] for row in summary.rows}
    assert len(rows) == len(result.methods) == len(study.spec.methods)
    for shift in ("loss + 10", "loss - 3"):
        assert rows["AdamW", shift] == rows["AdamW", "plain"], "AdamW does not see the loss"
    figure = study.spec.draw(result)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["all tasks", "factorisation"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('reference = "AdamV"', "unknown reference 'AdamV'"),
        ('metric = "test_accuracy"\nreference = "SGD"', "must be losses"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path, line, message):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY.replace('reference = "AdamW"', line), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_spec(path)
