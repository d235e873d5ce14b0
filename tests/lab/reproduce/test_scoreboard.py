"""The scoreboard: numbers checked by hand, its file, and the command with its picture."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from borat.lab.cli import app
from borat.lab.config import RunConfig
from borat.lab.methods import METHODS
from borat.lab.reproduce.kinds.ratios import summarise
from borat.lab.reproduce.kinds.scoreboard import FLOOR, Board, Score, make_board
from borat.lab.reproduce.reading import load_spec, read_spec
from borat.lab.store.records import collect
from borat.lab.store.run import Metrics, Run
from engines import Inline, Nothing

HEAD = """
title = "Two tasks"
source = "not in the paper"
question = "Which one?"
kind = "scoreboard"
protocol = "Train on digits."
seeds = [0, 1]
goal = ["FreeBORAT3"]
"""
SPEC = (
    HEAD
    + """
[base]
data = "digits"
batch_size = 16
epochs = 1
train_limit = 48
[[columns]]
name = "A"
model = "mlp-8"
[[columns]]
name = "B"
model = "mlp-16"
metric = "test_loss"
select_on = "validation_loss"
[[methods]]
name = "SGD"
optimizer = "sgd"
grid = { lr = [0.1, 1.0] }
[[methods]]
name = "FreeBORAT3"
optimizer = "free-borat"
grid = { lr = [0.1, 1.0] }
[mini]
differences = ["Nothing."]
"""
)


def write(folder: Path, text: str = SPEC) -> Path:
    path = folder / "two-tasks.toml"
    path.write_text(text, encoding="utf-8")
    return path


def store(folder: Path, config: RunConfig, validation: float, test: float, status: str = "finished") -> None:
    """Write a run as training does, with the same number as accuracy and as loss."""
    record = {"epoch": 0, "seconds": 1.0, "train_loss": 2 * test}
    record |= {"validation_accuracy": validation, "validation_loss": validation}
    metrics = Metrics(status, [record], {"test_accuracy": test, "test_loss": test})
    Run.create(folder / config.digest, config).write_metrics(metrics)


A = {
    ("SGD", 0.1): (0.8, 0.80, 0.82),
    ("SGD", 1.0): (0.9, 0.90, 0.88),
    ("FreeBORAT3", 1.0): (0.85, 0.88, 0.86),
    ("FreeBORAT3", 0.1): (0.7, 0.99, None),  # the best on the test set, but not on validation
}
B = {
    ("SGD", 0.1): (0.1, None, 1.0),  # the first seed diverged
    ("SGD", 1.0): (2.0, 1.5, 1.7),
    ("FreeBORAT3", 1.0): (1.0, 1.0, 1.0),
    ("FreeBORAT3", 0.1): (0.5, 0.8, 0.8),
}
"""The validation result with the first seed, and the test results with both."""


@pytest.fixture
def result(tmp_path):
    spec = read_spec(write(tmp_path))
    for cell in spec.at("mini").plan():
        for config in cell.configs:
            validation, *tests = (A if cell.column == "A" else B)[cell.method, config.lr]
            for seed, test in enumerate(tests):
                lost = seed == 0 and test is None
                if lost or test is not None:
                    status = "diverged" if lost else "finished"
                    store(tmp_path, config.replace(seed=seed), validation, 9.0 if lost else test, status)
    assert spec.at("mini").missing(tmp_path) == [], "the best on validation and the defaults have both seeds"
    return spec.at("mini").run(tmp_path, engine=Nothing())


GUESS = math.log(10)


def overall(board: Board, scores: pd.DataFrame, method: str) -> pd.Series:
    return summarise(board.ratios(scores)).loc[method]


def board_of(costs: dict[str, dict[str, float]]) -> Board:
    """Make a board with one seed, the same at the defaults and tuned."""
    scores = pd.DataFrame({method: {c: Score(x, None, 1) for c, x in row.items()} for method, row in costs.items()}).T
    return Board(scores, scores)


def test_numbers_by_hand(result):
    board = make_board(result)
    assert board.tuned.loc["SGD", "A"].mean == pytest.approx(0.11)
    assert board.defaults.loc["SGD", "A"].mean == pytest.approx(0.19)
    assert board.tuned.loc["FreeBORAT3", "A"] == board.defaults.loc["FreeBORAT3", "A"], (
        "chosen by validation, not by the test"
    )
    assert board.tuned.loc["FreeBORAT3", "B"] == Score(0.8, 0.0, 2)
    diverged = board.defaults.loc["SGD", "B"]
    assert diverged.mean == pytest.approx((1.0 + GUESS) / 2), "what diverged counts as guessing"
    assert (diverged.runs, diverged.lost) == (2, 1)
    assert [board.best(column) for column in "AB"] == ["SGD", "FreeBORAT3"]
    free, sgd = (overall(board, board.defaults, method) for method in ("FreeBORAT3", "SGD"))
    assert free["mean"] == pytest.approx(math.sqrt(0.13 / 0.11 * 1.0 / 0.8))
    assert (free.worst, free.task) == (pytest.approx(1.25), "B")
    assert sgd["mean"] == pytest.approx(math.sqrt(0.19 / 0.11 * (1.0 + GUESS) / 2 / 0.8))
    assert board.ranking() == ["FreeBORAT3", "SGD"]
    assert overall(board, board.tuned, "SGD")["mean"] == pytest.approx(math.sqrt(1.6 / 0.8))


def test_tables_by_hand(result):
    defaults, tuned, overall, usable, objective, goal = result.tables
    assert defaults.head == ("method", "A, accuracy, %", "B, loss")
    assert defaults.rows == [
        ("SGD", "81.0 ± 1.41", "1.65 ± 0.921 (1 of 2 lost)"),
        ("FreeBORAT3", "**87.0 ± 1.41**", "**1 ± 0**"),
    ]
    assert tuned.rows == [("SGD", "**89.0 ± 1.41**", "1.6 ± 0.141"), ("FreeBORAT3", "87.0 ± 1.41", "**0.8 ± 0**")]
    assert overall.rows[0] == ("FreeBORAT3", "1.215", "1.25, B", "1.087", "1.18, A")
    assert usable.rows == [("SGD", "0 of 2", "0 of 2"), ("FreeBORAT3", "1 of 2", "1 of 2")]
    assert objective.rows == [("SGD", "1.62, 1.78", "2, 3.2"), ("FreeBORAT3", "1.74, 1.74", "2, 1.6")]
    assert goal.rows == [
        ("FreeBORAT3, A", "87.0 ± 1.41", "89.0 ± 1.41, SGD", "2.0 points", "missed"),
        ("FreeBORAT3, B", "1 ± 0", "0.8 ± 0, FreeBORAT3", "25.0 %", "missed"),
        ("FreeBORAT3, overall", "1.215", "1.215, FreeBORAT3", "place 1 of 2", "met"),
    ]
    for words in ("![Two tasks](two-tasks.png)", "counts as guessing", "| **87.0 ± 1.41** |"):
        assert words in result.markdown("borat reproduce two-tasks", "two-tasks.png")
    assert [table.title for table in result.experiment.tables] == [table.title for table in result.tables]


def test_the_goal_can_be_met():
    board = board_of({"X": {"A": 0.10}, "Y": {"A": 0.11}})
    assert board.best("A") == "X"
    assert board.excess("Y", "A", "test_accuracy") == (pytest.approx(0.01), True), "exactly one point is near enough"
    assert board.excess("Y", "A", "test_loss") == (pytest.approx(0.1), False)


def test_overall_in_closed_form():
    """Ratios of 2, 2² … 2ⁿ have the geometric mean 2^((n + 1) / 2)."""
    other = {column: 0.01 * 2.0 ** (i + 1) for i, column in enumerate("abcde")}
    board = board_of({"best": dict.fromkeys(other, 0.01), "other": other})
    found = overall(board, board.tuned, "other")
    assert found["mean"] == pytest.approx(2.0**3)
    assert (found.worst, found.task) == (pytest.approx(32.0), "e")
    assert overall(board, board.tuned, "best")["mean"] == 1.0


def test_a_method_without_error_is_not_infinitely_better():
    board = board_of({"X": {"A": 0.0}, "Y": {"A": 0.01}})
    assert overall(board, board.tuned, "Y")["mean"] == pytest.approx(0.01 / FLOOR)
    assert overall(board, board.tuned, "X")["mean"] == 1.0


def test_a_method_that_always_diverges_has_a_place(tmp_path):
    spec = read_spec(write(tmp_path))
    for cell in spec.at("mini").plan():
        for config in cell.configs:
            for seed in (0, 1):
                status = "diverged" if cell.method == "SGD" else "finished"
                store(tmp_path, config.replace(seed=seed), 0.5, math.nan if status == "diverged" else 0.5, status)
    result = spec.at("mini").run(tmp_path, engine=Nothing())
    board = make_board(result)
    assert board.tuned.loc["SGD", "A"] == Score(0.9, 0.0, 2, lost=2)
    assert overall(board, board.tuned, "SGD")["mean"] == pytest.approx(math.sqrt(0.9 / 0.5 * GUESS / 0.5))
    assert "10.0 ± 0.00 (2 of 2 lost)" in result.markdown("")
    assert result.tables[4].rows[0] == ("SGD", "-, -", "-, -")


# The files


def test_every_method_has_six_decades_around_its_defaults():
    spec = load_spec("scoreboard")
    cells = spec.at("mini").plan()
    assert (len(spec.columns), len(spec.methods), len(cells)) == (11, 16, 176)
    for cell in cells:
        rates = [config.lr for config in cell.configs]
        assert [round(math.log10(b / a), 6) for a, b in pairwise(rates)] == [1.0] * 5
        (default,) = cell.defaults
        assert default in cell.configs, "a run counts once"
        assert default.lr == METHODS[default.optimizer].lr
    losses = {column.name for column in spec.columns if column.metric == "test_loss"}
    assert losses == {column.name for column in spec.columns if column.name.startswith("text")}


@pytest.mark.parametrize(("old", "new", "message"), [
    ('goal = ["FreeBORAT3"]', "goals = []", "unknown key 'goals'; did you mean 'goal'"),
    (HEAD, HEAD.replace("scoreboard", "table").partition("goal")[0], "columns.1: unknown key of B 'metric'"),
    ('metric = "test_loss"', 'metric = "test_los"', "columns.1: metric: unknown metric 'test_los'; did you mean"),
    ('goal = ["FreeBORAT3"]', 'goal = ["FreeBORAT"]', "unknown method 'FreeBORAT'; did you mean 'FreeBORAT3'"),
    ('optimizer = "sgd"', 'optimizer = "sgd"\ncolumns = ["A"]', "SGD must be in all columns of a scoreboard, got A"),
    ("[mini]", "[paper]\nSGD = { A = 90.0 }\n[mini]", "unknown key 'paper'"),
])  # fmt: skip
def test_mistakes_are_explained(tmp_path, old, new, message):
    assert old in SPEC
    with pytest.raises(ValueError, match=message):
        read_spec(write(tmp_path, SPEC.replace(old, new, 1)))


def test_only_the_learning_rate_is_tuned(tmp_path):
    spec = read_spec(write(tmp_path))
    with pytest.raises(ValueError, match="tries several values of lr only, got several of weight_decay"):
        spec.at("mini", changes={"weight_decay": [0.0, 0.1]}).plan()


# The command


def test_from_the_command_to_the_report(tmp_path):
    runs, output, picture = tmp_path / "runs", tmp_path / "pages" / "two.md", tmp_path / "pictures" / "two.png"
    words = ["reproduce", str(write(tmp_path)), "--out", str(runs), "--output", str(output), "--picture", str(picture)]
    read_spec(write(tmp_path)).at("mini").run(runs, engine=Inline())
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    text = output.read_text(encoding="utf-8")
    assert "![Two tasks](../pictures/two.png)" in text
    assert "borat reproduce two-tasks.toml --scale mini --output two.md --picture two.png" in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = collect(runs)
    assert (len(found.experiments), found.notes) == (1, [])
    assert len(found.runs) >= 12, "two rates of two methods on two tasks, and the defaults with another seed"
    page = CliRunner().invoke(app, ["report", str(runs), "--latex", str(tmp_path / "two.tex")])
    assert page.exit_code == 0, page.output
    assert "Error or loss over that of the best tuned method" in (runs / "report.html").read_text(encoding="utf-8")
    assert r"\textbf{" in (tmp_path / "two.tex").read_text(encoding="utf-8")
    refused = CliRunner().invoke(app, [*words[:-1], "two.jpg"])
    assert "--picture must end with .png or .pdf" in " ".join(refused.output.split())
