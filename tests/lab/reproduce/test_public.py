"""The experiments with public numbers, and the long run: their pages at toy size."""

from __future__ import annotations

import pytest

from borat.lab.config import RunConfig
from borat.lab.reproduce.kinds.curves import state_bytes
from borat.lab.reproduce.reading import load_spec
from engines import Inline


@pytest.mark.parametrize(("name", "methods", "published", "tolerance", "measure"), [
    ("deepobs", ["FreeBORAT3", "Momentum"], "87.05 ± 0.03", 0.002, "test loss"),
    ("sklearn-digits", ["FreeBORAT3", "constant with momentum"], "0.723", 0.5,
     "training examples that are wrong, in %; training loss"),
])  # fmt: skip
def test_published_numbers_stand_beside_ours(tmp_path, name, methods, published, tolerance, measure):
    study = load_spec(name).at("mini", methods=methods)
    result = study.run(tmp_path, engine=Inline())
    row = next(row for row in result.tables[0].rows if row[0] == methods[1])
    assert row[2] == published
    assert float(row[1].split()[0]) == pytest.approx(float(published.split()[0]), rel=tolerance)
    assert result.tables[0].title.endswith(f"mini scale: {measure}"), "each task has its own"
    page = result.markdown(f"borat reproduce {name}")
    assert "batch_size" not in page, "the tasks have their own"
    assert "the authors' code" not in page


def test_the_long_run_has_losses_times_memory_and_a_picture(tmp_path):
    tiny = {"model": "ngram-2-8", "window": 16, "train_limit": 32, "validation_size": 8, "epochs": 4}
    study = load_spec("long-run").at("mini", changes=tiny)
    result = study.run(tmp_path, engine=Inline())
    comparison, _, losses, costs = result.tables
    assert [row[0] for row in comparison.rows] == ["FreeBORAT3", "AdamW", "AdamW cosine", "Schedule-Free AdamW"]
    assert [row[-1] for row in costs.rows] == ["12", "8", "8", "8"]
    assert [float(text) > 0 for row in losses.rows for text in row[2:]] == [True] * 16
    over_characters, over_time = study.spec.draw(result).axes
    assert len(over_characters.lines) == len(over_time.lines) == 6
    assert over_characters.lines[0].get_xdata()[-1] == pytest.approx(4 * 32 * 16 / 1e6)


def test_the_full_long_run_is_ten_million_parameters_on_equal_budgets():
    configs = [config for cell in load_spec("long-run").at("full").plan() for config in cell.configs]
    assert {(c.model, c.epochs, c.train_limit, c.window, c.batch_size) for c in configs} == {
        ("gpt-6-384", 16, 1280, 128, 8)
    }
    assert sorted(c.lr for c in configs if c.schedule == "warmup-cosine") == [0.0003, 0.001, 0.003]


@pytest.mark.parametrize(("optimizer", "bundle_size", "expected"), [
    ("sgd", 3, 4), ("adamw", 3, 8), ("schedule-free-adamw", 3, 8), ("free-borat", 2, 8), ("free-borat", 3, 12),
    ("free-borat", 5, 20),
])  # fmt: skip
def test_memory_of_the_state(optimizer, bundle_size, expected):
    found = state_bytes(RunConfig(optimizer=optimizer, bundle_size=bundle_size))
    assert found == pytest.approx(expected, rel=0.01)
