"""Experiments end to end at toy size: the choice of configurations, the claims, and the command."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from borat.lab.cli import app
from borat.lab.cli.demo import accuracy_text
from borat.lab.config import RunConfig
from borat.lab.report.tasks import group
from borat.lab.reproduce import kinds
from borat.lab.reproduce.claims import Claim, PaperSpec, verdict_on, verdicts
from borat.lab.reproduce.kinds.grid import GridSpec
from borat.lab.reproduce.kinds.table import paper_text
from borat.lab.reproduce.reading import load_spec, read_spec, spec_names
from borat.lab.reproduce.run import Cell, CellResult, Result, read_results, with_scores
from borat.lab.store.records import as_table, collect, curve, read_runs
from borat.lab.store.run import Metrics, Run
from borat.lab.sweeps.grid import parse_values
from borat.lab.timing.epochs import measure
from borat.lab.timing.shapes import Runtime
from data_files import random_images, write_images, write_pairs
from engines import Inline, Nothing

# The toy runs are too short for the larger bundles
pytestmark = pytest.mark.filterwarnings(r"ignore:bundle_size=\d+ needs \d+ batches")

TOY = {
    "data": "digits",
    "model": "mlp-16",
    "dropout": 0.0,
    "train_split": None,
    "image_size": None,
    "label_column": None,
    "window": None,
    "train_limit": 48,
    "validation_size": None,
    "batch_size": 16,
    "epochs": 1,
    "lr": 0.1,
}
TRAINED = [name for name in spec_names() if isinstance(load_spec(name), PaperSpec)]
"""Experiments of the paper; the other kinds have their own test files."""

SPEC = """
title = "Small"
source = "Table 9"
question = "Which rate?"
kind = "table"
protocol = "Train on digits."
seeds = [0, 1, 2]
[base]
data = "digits"
model = "mlp-16"
epochs = 2
train_limit = 64
[[columns]]
name = "digits"
[[methods]]
name = "SGD"
paper = "SGD*"
optimizer = "sgd"
grid = { lr = [0.01, 0.1, 1.0] }
[[methods]]
name = "ALI-G"
optimizer = "alig"
lr = 1.0
[paper]
"SGD*" = { digits = 90.0 }
"ALI-G" = { digits = { mean = 95.5, std = 0.2 } }
"SGD†" = { digits = 91.0 }
[marks]
"*" = "reported by others"
[[claims]]
text = "ALI-G is better."
order = ["ALI-G", "SGD"]
[mini]
differences = ["Smaller."]
"""


@pytest.fixture(scope="module")
def toy_runs(tmp_path_factory) -> Path:
    """A folder shared by all experiments, since many of their toy runs are the same."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SPEC, encoding="utf-8")
    return read_spec(path)


def as_grid(folder: Path, text: str) -> GridSpec:
    path = folder / "grid.toml"
    path.write_text(text.replace('kind = "table"', 'kind = "grid"'), encoding="utf-8")
    return read_spec(path)


@pytest.mark.parametrize("name", TRAINED)
def test_every_experiment_end_to_end(name, toy_runs):
    spec = load_spec(name)
    is_task = spec.at("mini").plan()[0].configs[0].task
    toy = {"steps": 2, "seed": 0} if is_task else TOY
    changes = dict(toy) if not isinstance(spec, GridSpec) else {**TOY, "radius": 20.0, "lr": [0.1, 1.0]}
    result = spec.at("mini", changes=changes).run(toy_runs, engine=Inline())
    assert [(c.cell.method, c.cell.column) for c in result.cells] == [
        (c.method, c.column) for c in spec.at("mini", changes=changes).plan()
    ]
    assert not list(result.runs.error[result.runs.status == "failed"])
    assert sum(c.status == "finished" for c in result.cells) > len(result.cells) / 2
    shown = result.markdown(f"borat reproduce {name}")
    for word in (spec.title, "**mini**", f"borat reproduce {name}", "torch 2", spec.source, *result.methods):
        assert word in shown
    for row, cells in spec.paper.items():
        for column, published in cells.items():
            assert row in shown
            assert column not in result.columns or paper_text(published) in shown
    assert (": training accuracy, %" in shown) is isinstance(spec, GridSpec)
    if found := verdicts(spec.claims, result):
        assert [row[0] for row in result.tables[-1].rows] == [verdict.claim.text for verdict in found]


# On files with the schemas of the real data


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BORAT_CACHE", str(tmp_path / "cache"))


def test_on_cifar_files(tmp_path, cache):
    few = random_images(40, (3, 32, 32))
    labels = [i % 100 for i in range(5100)]
    for split, count in (("train", 5100), ("test", 100)):
        images = few[[i % 40 for i in range(count)]]
        coarse = [label // 5 for label in labels[:count]]
        write_images(
            tmp_path / f"{split}.parquet", images, "img", {"fine_label": labels[:count], "coarse_label": coarse}
        )
    changes = {"model": "logistic", "train_limit": 40, "epochs": 1, "lr": 0.1, "radius": 10.0, "seed": 3}
    spec = load_spec("robustness-cifar100-noise50")
    result = spec.at("mini", methods=["BORAT3"], changes=changes).run(
        tmp_path / "runs", data_dir=tmp_path, engine=Inline()
    )
    (run,) = result.runs.itertuples()
    assert not math.isnan(run.value)
    assert run.label_noise == 0.5
    environment = json.loads((tmp_path / "runs" / run.Index / "environment.json").read_text())
    assert environment["data"]["switched_labels"] > 0
    assert environment["data"]["input_shape"] == [3, 16, 16]
    assert environment["data"]["sizes"] == {"train": 40, "validation": 500, "test": 100}


def test_on_snli_files(tmp_path, cache):
    pairs = [(f"A man number {i} runs .", f"Somebody is {i % 7} .", i % 3) for i in range(60)]
    for split in ("validation", "test"):
        write_pairs(tmp_path / f"{split}.parquet", pairs)
    spec = load_spec("snli")
    changes = {"model": "infersent-4", "epochs": 1, "lr": 0.1}
    result = spec.at("mini", methods=["DFW", "SGD"], changes=changes).run(
        tmp_path / "runs", data_dir=tmp_path, engine=Inline()
    )
    assert [(c.cell.method, c.cell.column, c.status) for c in result.cells] == [
        ("SGD", "CE", "finished"),
        ("DFW", "SVM", "finished"),
        ("SGD", "SVM", "finished"),
    ]


def test_missing_data_raise_before_anything_runs(tmp_path):
    with pytest.raises(OSError, match="cifar100 needs"):
        load_spec("robustness-cifar100-ce").at("mini").run(tmp_path, data_dir=tmp_path, engine=Nothing())


# The choice


def store(
    folder: Path, config: RunConfig, validation: list[float], test: float, status: str = "finished", **more: float
) -> None:
    """Write a run as training does."""
    run = Run.create(folder / config.digest, config)
    epochs = [
        {"epoch": i, "seconds": 1.5, "train_loss": 1 - v, "validation_accuracy": v} for i, v in enumerate(validation)
    ]
    run.write_metrics(Metrics(status, epochs, {"test_accuracy": test, "test_loss": 1 - test, **more}))


def test_the_best_on_validation_is_chosen_and_repeated(tmp_path, spec):
    sgd, alig = spec.at("mini").plan()
    low, middle, high = sgd.configs
    store(tmp_path, low, [0.99, 0.70], 0.95)  # the best epoch and the best test accuracy, but not after the last epoch
    store(tmp_path, middle, [0.10, 0.80], 0.60)
    store(tmp_path, high, [0.99, 0.99], 0.99, "diverged")
    store(tmp_path, alig.configs[0], [0.50, 0.50], 0.50)
    repeats = [(middle, (0.70, 0.80)), (alig.configs[0], (0.40, 0.60))]
    assert spec.at("mini").missing(tmp_path) == [c.replace(seed=seed) for c, _ in repeats for seed in (1, 2)]
    for config, tests in repeats:
        for seed, test in enumerate(tests, start=1):
            store(tmp_path, config.replace(seed=seed), [0.5, 0.5], test)
    result = spec.at("mini").run(tmp_path, engine=Nothing())
    cell = result.cell("SGD", "digits")
    assert list(cell.chosen.config) == [middle.replace(seed=seed) for seed in (0, 1, 2)]
    assert (cell.result.mean, cell.result.std) == (pytest.approx(0.7), pytest.approx(0.1))
    assert spec.at("mini").missing(tmp_path) == []
    shown = result.markdown("borat reproduce small --data-dir DATA")
    assert "| SGD (SGD*) | 70.0 ± 10.00 | 90 |" in shown
    assert "| ALI-G | 50.0 ± 10.00 | 95.5 ± 0.2 |" in shown
    assert "| SGD† | - | 91 |" in shown
    assert "| SGD | digits | lr 0.1, batch_size 128 | 80.0 | 3 | 1 |" in shown
    assert "| ALI-G is better. | not supported | ALI-G 50, SGD 70 |" in shown
    assert "    borat reproduce small --data-dir DATA" in shown
    assert "± is the standard deviation over the seeds 0, 1, 2." in shown
    assert "8 runs, 24 s of training in all" in shown
    assert [table.title for table in result.experiment.tables] == [table.title for table in result.tables]
    result.experiment.write(tmp_path)
    (task,) = group(collect(tmp_path))
    assert task.best["SGD"].config == middle, "the report shows what was chosen: lower than another over further seeds"


def test_a_method_that_always_diverges_has_no_number(tmp_path, spec):
    sgd, alig = spec.at("mini").plan()
    for config in (*sgd.configs, *(alig.configs[0].replace(seed=seed) for seed in (0, 1, 2))):
        status = "diverged" if config.optimizer == "sgd" or config.seed == 2 else "finished"
        store(tmp_path, config, [math.nan if status == "diverged" else 0.5], 0.1, status)
    result = spec.at("mini").run(tmp_path, engine=Nothing())
    shown = result.markdown("")
    assert "| SGD (SGD*) | diverged | 90 |" in shown
    assert "| ALI-G | 10.0 ± 0.00 (1 of 3 seeds diverged) | 95.5 ± 0.2 |" in shown


def test_a_run_that_failed_keeps_its_place_and_its_traceback(tmp_path):
    first, second, third = (RunConfig(lr=lr) for lr in (0.1, 1.0, 10.0))
    store(tmp_path, second, [0.9], 0.8)
    runs = with_scores(
        read_results(tmp_path, [first, second, third], ["why", "", "why not"]), "test_accuracy", "train_loss"
    )
    assert list(runs.index) == [first.digest, second.digest, third.digest]
    assert list(runs.status) == ["failed", "finished", "failed"]
    assert (list(runs.error), list(runs.value.notna())) == (["why", "", "why not"], [False, True, False])
    assert list(read_results(tmp_path, [first], ["why"]).status) == ["failed"], "there need be none that worked"


def test_the_smallest_training_loss_is_chosen(tmp_path):
    spec = load_spec("cifar100-training")
    changes = {key: value for key, value in TOY.items() if key != "lr"}
    chosen = {"methods": ["Adam"], "columns": ["WRN"], "changes": changes}
    first, second, third = spec.at("mini", **chosen).plan()[0].configs
    store(tmp_path, first, [0.2, 0.3, 0.6], 0.9)
    store(tmp_path, second, [0.3, 0.5, 0.7], 0.1, fit_accuracy=0.985)
    store(tmp_path, third, [0.2, 0.3, 0.4], 0.9)
    result = spec.at("mini", **chosen).run(tmp_path, engine=Nothing())
    (cell,) = result.cells
    assert cell.config == second
    assert "| Adam | WRN | 0.7 | 0.5 | 0.3 | 0.3 | 98.5 |" in result.markdown(""), "the training accuracy, too"
    assert curve(cell.chosen.history.iloc[0], "train_loss") == pytest.approx([0.7, 0.5, 0.3])
    assert cell.result.mean == pytest.approx(0.3)
    over_epochs, over_time = spec.draw(result).axes
    assert (over_epochs.get_xlabel(), over_epochs.get_yscale()) == ("epoch", "log")
    assert [list(line.get_xdata()) for line in over_epochs.lines] == [[1, 2, 3]] * 3, "of all runs"
    assert [list(line.get_xdata()) for line in over_time.lines] == [[0.025, 0.05, 0.075]] * 3
    assert over_time.get_legend_handles_labels()[1] == ["Adam, lr 0.001"], "of the chosen one"


def test_every_cell_of_a_grid_has_every_seed(tmp_path, spec):
    grid = as_grid(tmp_path, SPEC.replace("seeds = [0, 1, 2]", "seeds = [0, 1]")).at("mini")
    sgd, alig = grid.plan()
    assert [(c.lr, c.seed) for c in sgd.configs] == [(lr, seed) for seed in (0, 1) for lr in (0.01, 0.1, 1.0)]
    assert (sgd.varied, alig.varied) == (("lr",), ())
    assert grid.size() == "8 runs"
    assert grid.missing(tmp_path) == [*sgd.configs, *alig.configs]
    tests = {0.01: (0.50, 0.70), 0.1: (0.90, 0.20), 1.0: (0.80, math.nan)}  # the best run is not in the best cell
    for config in sgd.configs:
        test = tests[config.lr][config.seed]
        status = "diverged" if math.isnan(test) else "finished"
        store(tmp_path, config, [test], test, status, fit_accuracy=test + 0.05)
    for config, test in zip(alig.configs, (0.55, 0.63), strict=True):
        store(tmp_path, config, [test], test, fit_accuracy=1.0)
    assert grid.missing(tmp_path) == []
    result = grid.run(tmp_path, engine=Nothing())
    shown = result.markdown("")
    assert "| method | settings | lr 0.01 | lr 0.1 | lr 1 |" in shown
    assert "| SGD | - | 60.0 | 55.0 | diverged |" in shown, "test accuracies, each a mean over two seeds"
    assert "| SGD | - | 65.0 | 60.0 | diverged |" in shown, "training accuracies"
    assert "| SGD | 60.0 | 65.0 | 51.7 | 1 of 3 | 0.01 | 1 |" in shown, "the mean counts the run that diverged as 0"
    assert "| ALI-G | 59.0 | 100.0 | 59.0 | 1 of 1 | 1 | 0 |" in shown
    assert "Each cell is the mean over the seeds 0, 1, or diverged if one of them has" in shown
    cell = result.cell("SGD", "digits")
    assert list(cell.chosen.config) == [sgd.configs[0], sgd.configs[3]], "chosen by the mean of both"
    assert cell.result.mean == pytest.approx(0.6)

    def number(statistic):
        return verdict_on(claim(statistic, methods=["SGD"], at_least=0.0), "digits", result).numbers["SGD"]

    assert [number(statistic) for statistic in ("best", "mean", "usable")] == pytest.approx([60, 310 / 6, 1])


def test_changes_replace_grids(spec):
    sgd, _ = spec.at("mini", changes={"lr": 0.3, "radius": [1.0, 2.0]}).plan()
    assert [(c.lr, c.radius) for c in sgd.configs] == [(0.3, 1.0), (0.3, 2.0)]
    assert sgd.varied == ("radius",)
    assert {c.seed for c in spec.at("mini", changes={"seed": [4, 5]}).plan()[0].configs} == {4}
    with pytest.raises(ValueError, match="unknown method 'SDG'; did you mean 'SGD'"):
        spec.at("mini", methods=["SDG"])
    with pytest.raises(ValueError, match="unknown column 'digit'; did you mean 'digits'"):
        spec.at("mini", columns=["digit"])
    with pytest.raises(ValueError, match="unknown scale 'huge'"):
        spec.at("huge")
    with pytest.raises(ValueError, match="has no DFW in CE"):
        load_spec("snli").at("full", methods=["DFW"], columns=["CE"])


# Claims


def verdict(claim: Claim, values: dict[str, dict[float, float]], metric: str = "test_accuracy"):
    """Check a claim about methods with a value for each learning rate; NaN for a run that diverged."""
    cells = []
    for method, found in values.items():
        configs = tuple(RunConfig(lr=lr) for lr in found)
        results = [Metrics("diverged" if math.isnan(v) else "finished", [], {metric: v}) for v in found.values()]
        runs = as_table((c.digest, c, result) for c, result in zip(configs, results, strict=True))
        runs = with_scores(runs, metric, metric)
        cells.append(CellResult(Cell(method, "A", configs, ("lr",)), runs, runs[runs.value.notna()][:1], runs[:0]))
    spec = load_spec("robustness-cifar100-ce").model_copy(update={"metric": metric})
    return verdict_on(claim, "A", Result(spec.at("mini"), tuple(cells)))


def claim(statistic: str, *order: str, **more) -> Claim:
    """Make a claim; each letter of a group is a method."""
    return Claim(text="", statistic=statistic, order=[list(group) for group in order], **more)


@pytest.mark.parametrize(("about", "expected", "numbers"), [
    (claim("best", "A", "B"), True, {"A": 60.0, "B": 50.0}),
    (claim("best", "B", "A"), False, {"B": 50.0, "A": 60.0}),
    (claim("best", "B", "A", margin=-10.0), True, {"B": 50.0, "A": 60.0}),
    (claim("best", "B", "A", margin=-9.9), False, {"B": 50.0, "A": 60.0}),
    (claim("best", "A", "B", factor=1.2), True, {"A": 60.0, "B": 50.0}),
    (claim("best", "A", "B", factor=1.21), False, {"A": 60.0, "B": 50.0}),
    (claim("best", "AB", "C"), True, {"A": 60.0, "B": 50.0, "C": 40.0}),
    (claim("best", "AC", "B"), False, {"A": 60.0, "B": 50.0, "C": 40.0}),
    (claim("mean", "B", "A"), True, {"A": 30.0, "B": 49.5}),
    (claim("usable", "A", "B"), True, {"A": 1, "B": 0}),
    (claim("usable", "B", "C"), False, {"B": 0, "C": 0}),
    (claim("best", "B", "A", where={"lr": [1.0]}), True, {"A": math.nan, "B": 49.0}),
    (claim("best", "A", "B", where={"lr": [1.0]}, margin=-99.0), False, {"A": math.nan, "B": 49.0}),
    (claim("best", "A", "B", where={"lr": [7.0]}), None, {}),
    (claim("best", "A", "Z"), None, {"A": 60.0}),
    (claim("best", methods=["A", "B"], at_least=50.0), True, {"A": 60.0, "B": 50.0}),
    (claim("best", methods=["A", "B"], at_least=51.0), False, {"A": 60.0, "B": 50.0}),
    (claim("best", methods=["A", "B"], at_most=60.0), True, {"A": 60.0, "B": 50.0}),
    (claim("best", methods=["A"], where={"lr": [1.0]}, at_most=60.0), False, {"A": math.nan}),
])  # fmt: skip
def test_claims(about, expected, numbers):
    found = verdict(about, {"A": {0.1: 0.6, 1.0: math.nan}, "B": {0.1: 0.5, 1.0: 0.49}, "C": {0.1: 0.4, 1.0: 0.4}})
    assert found.supported is expected
    assert found.numbers == pytest.approx(numbers, nan_ok=True)


@pytest.mark.parametrize(("second", "usable"), [(0.75, 1), (0.7499, 0)])
def test_exactly_two_points_below_the_best_is_usable_everywhere(tmp_path, spec, second, usable):
    """The claims, the table of a grid, the report and the demo agree."""
    assert verdict(claim("usable", "A", "B"), {"A": {1.0: 0.77}, "B": {1.0: second}}).numbers == {"A": 1, "B": usable}
    for config, accuracy in ((RunConfig(lr=0.1), 0.77), (RunConfig(lr=1.0), second)):
        store(tmp_path, config, [accuracy], accuracy)
    (task,) = group(collect(tmp_path))
    assert task.usable[0].cells == 1 + usable
    runs = with_scores(read_runs(tmp_path), "test_accuracy", "test_accuracy")
    grid = Result(
        as_grid(tmp_path, SPEC).at("mini"),
        (CellResult(Cell("SGD", "digits", (RunConfig(lr=0.1), RunConfig(lr=1.0)), ("lr",)), runs, runs[:1], runs[:0]),),
    )
    assert f"| SGD | 77.0 | - | {50 * (0.77 + second):.1f} | {1 + usable} of 2 |" in grid.markdown("")
    assert ("green" in accuracy_text(second, 0.77)) is bool(usable)


def test_claims_about_losses():
    losses = {"A": {0.1: 0.1}, "B": {0.1: 1.0}}
    assert verdict(claim("value", "A", "B", factor=10.0), losses, "train_loss").supported
    assert not verdict(claim("value", "A", "B", factor=10.1), losses, "train_loss").supported
    assert not verdict(claim("value", "B", "A"), losses, "train_loss").supported


def test_losses_within_a_twentieth_of_the_lowest_are_usable():
    losses = {"A": {0.1: 2.0, 1.0: 2.1}, "B": {0.1: 2.11, 1.0: math.nan}}
    assert verdict(claim("usable", "A", "B"), losses, "test_loss").numbers == {"A": 2, "B": 0}
    assert verdict(claim("best", "A", "B"), losses, "test_loss").numbers == {"A": 2.0, "B": 2.11}
    found = verdict(claim("mean", "A", "B"), losses, "test_loss")
    assert found.numbers == {"A": pytest.approx(2.05), "B": math.inf}
    assert found.supported, "a method that diverges is worse"
    assert not verdict(claim("mean", "B", "A"), losses, "test_loss").supported


def test_claims_about_other_measurements(tmp_path, spec):
    sgd, alig = spec.at("mini").plan()
    for cell, accuracies in ((sgd, (0.5, 0.6, 0.7)), (alig, (0.8, 0.9, 0.6))):
        for config in (*cell.configs, *(c.replace(seed=seed) for c in cell.configs for seed in (1, 2))):
            store(tmp_path, config, list(accuracies), 0.5)
    result = spec.at("mini").run(tmp_path, engine=Nothing())

    def numbers(**about):
        return verdict_on(claim("value", methods=["SGD", "ALI-G"], at_least=75.0, **about), "digits", result).numbers

    assert numbers(metric="validation_accuracy", epoch=2) == pytest.approx({"SGD": 60, "ALI-G": 90})
    assert numbers(metric="validation_accuracy") == pytest.approx({"SGD": 70, "ALI-G": 60})
    assert numbers(metric="train_loss", epoch=1) == pytest.approx({"SGD": 0.5, "ALI-G": 0.2})
    assert numbers(metric="validation_accuracy", epoch=4) == pytest.approx(
        {"SGD": math.nan, "ALI-G": math.nan}, nan_ok=True
    )
    in_time = claim("value", methods=["ALI-G"], at_least=75.0, metric="validation_accuracy", epoch=1)
    assert verdict_on(in_time, "digits", result).supported
    faster = Claim(text="", order=["ALI-G", "SGD"], metric="train_loss", epoch=1)
    assert verdict_on(faster, "digits", result).supported


# Custom kinds


def test_adding_a_file_adds_a_kind(tmp_path, monkeypatch):
    """The example of docs/add-an-experiment.md works."""
    page = (Path(__file__).parents[3] / "docs" / "add-an-experiment.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(# kinds/spread\.py\n.*?)```", page, re.DOTALL)
    (tmp_path / "kinds").mkdir()
    (tmp_path / "kinds" / "spread.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(kinds, "__path__", [*kinds.__path__, str(tmp_path / "kinds")])
    (tmp_path / "small.toml").write_text(SPEC.replace('kind = "table"', 'kind = "spread"'), encoding="utf-8")
    result = read_spec(tmp_path / "small.toml").at("mini").run(tmp_path / "runs", engine=Inline())
    table, *_ = result.tables
    assert (table.head, [row[0] for row in table.rows]) == (("method", "lowest", "highest"), ["SGD", "ALI-G"])


# Run time


def test_run_time_of_a_small_model():
    runtime = load_spec("runtime-cifar100").at("mini").runtime
    small = Runtime(
        model="mlp-64",
        input_shape=(16,),
        classes=4,
        batch_size=8,
        examples=80,
        bundle_sizes=(1, 2, 5),
        reference="SGD",
        rounds=3,
    )
    calls = []
    times = measure(small, progress=lambda done, total: calls.append((done, total)))
    assert [t.name for t in times] == ["SGD", "BORAT N=2", "BORAT N=5"]
    assert len({t.passes for t in times}) == 1
    assert all(t.seconds == t.passes + t.steps > 0 for t in times)
    assert calls[-1][0] == calls[-1][1] == len(calls)
    assert (runtime.batch_size, runtime.model, runtime.rounds) == (128, "wrn-40-4", 15)
    assert runtime.bundle_sizes == tuple(range(1, 11))


# The command


def run(*words: str):
    return CliRunner().invoke(app, ["reproduce", *words])


def test_list(monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    shown = run("--list").output
    for name in spec_names():
        assert name in shown
    assert "full: 100 runs; mini: 120 runs" in shown
    assert "10 optimizers to time" in shown


def test_one_row_by_command_and_again(tmp_path, spec):
    words = [str(tmp_path / "small.toml"), "--methods", "ALI-G", "--set", "seed=3,4", "--set", "lr=0.1,1"]
    words += ["--out", str(tmp_path / "out"), "--output", str(tmp_path / "table" / "small.md"), "--workers", "1"]
    first = run(*words)
    assert first.exit_code == 0, first.output
    assert first.output.count("finished, test accuracy") == 3, "two learning rates, and the better one once more"
    runs = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/metrics.json")}
    assert len(runs) == 3
    text = (tmp_path / "table" / "small.md").read_text()
    assert "borat reproduce small.toml --scale mini --set seed=3,4 --set lr=0.1,1.0 --methods ALI-G" in text
    assert str(tmp_path) not in text, "paths of this machine are private"
    assert "Changed by hand for this result: seed 3,4; lr 0.1,1.0." in text
    assert "begun or done" not in text
    values = json.loads((tmp_path / "out" / "experiment.json").read_text())
    assert values["tables"][1]["rows"] == [["ALI-G", "digits", *values["tables"][1]["rows"][0][2:4], "2", "0"]]
    assert run(*words).exit_code == 0
    assert runs == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/metrics.json")}
    assert "for the command, which found 3 of them begun or done" in (tmp_path / "table" / "small.md").read_text()


def test_commands_name_the_learning_rate(tmp_path):
    """A rate of 0.1 is the default of some optimizers, and one of six rates for the others."""
    lines = run("scoreboard", "--columns", "digits", "--out", str(tmp_path), "--commands").output.splitlines()
    wanted = {config.digest for config in load_spec("scoreboard").at("mini", columns=["digits"]).missing(tmp_path)}
    printed = set()
    for line in lines:
        words = shlex.split(line)[2:]
        flags = dict(zip(words[::2], words[1::2], strict=True))
        values = {flag.strip("-").replace("-", "_"): text for flag, text in flags.items() if flag != "--out"}
        printed.add(RunConfig(**{key: parse_values(key, text)[0] for key, text in values.items()}).digest)
    assert printed == wanted


def test_commands_train_what_is_missing(tmp_path, spec):
    words = [str(tmp_path / "small.toml"), "--methods", "ALI-G", "--out", str(tmp_path / "out"), "--commands"]
    counts = []
    while "no run is missing" not in (output := run(*words).output):
        counts.append(len(output.splitlines()))
        for line in output.splitlines():
            assert CliRunner().invoke(app, shlex.split(line)[1:]).exit_code == 0
    assert counts == [1, 2], "the further seeds follow the first"
    result = spec.at("mini", methods=["ALI-G"]).run(tmp_path / "out", engine=Nothing())
    assert result.cells[0].result.std is not None


def test_run_time_by_command(tmp_path):
    text = (Path(__file__).parents[3] / "experiments" / "runtime-cifar100.toml").read_text()
    for old, new in (('"wrn-40-4"', '"mlp-8"'), ("batch_size = 128", "batch_size = 4"), ("rounds = 15", "rounds = 2")):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "time.toml").write_text(text)
    done = run(str(tmp_path / "time.toml"), "--out", str(tmp_path / "out"), "--output", str(tmp_path / "time.md"))
    assert done.exit_code == 0, done.output
    shown = (tmp_path / "time.md").read_text()
    for ratio in (1.09, 1.34, 1.36, 1.46, 1.53, 1.62, 1.74, 1.85, 1.95):
        assert f"| {ratio} |" in shown
    values = json.loads((tmp_path / "out" / "experiment.json").read_text())
    name, *_, ours, paper, _, _ = values["tables"][0]["rows"][-1]
    assert (name, paper) == ("BORAT N=10", "99.5")
    assert float(ours) > 0


@pytest.mark.parametrize(("words", "message"), [
    ([], "no experiment given: --list shows their names"),
    (["snil"], "unknown experiment 'snil'; did you mean 'snli'"),
    (["snli", "--scale", "miny"], "unknown scale 'miny'; did you mean 'mini'"),
    (["snli", "--methods", "Borat3"], "unknown method 'Borat3'; did you mean 'BORAT3'"),
    (["snli", "--columns", "SVN"], "unknown column 'SVN'; did you mean 'SVM'"),
    (["snli", "--set", "lr"], "--set must be KEY=VALUE, got 'lr'"),
    (["snli", "--set", "learning_rate=1"], "unknown key 'learning_rate'"),
    (["snli", "--set", "lr=fast"], "lr must be of type float"),
    (["snli", "--engine", "rya"], "unknown engine 'rya'; did you mean 'ray'"),
    (["runtime-cifar100", "--methods", "SGD"], "measures run time"),
])  # fmt: skip
def test_mistakes_are_explained(words, message, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    result = run(*words, "--data-dir", str(tmp_path))
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())
    assert not list(tmp_path.iterdir())


def test_curves_of_a_task_have_their_cost(tmp_path):
    """A task has a number of steps instead of a number of examples."""
    file = tmp_path / "own.toml"
    file.write_text(
        'title = "Own"\nsource = "own"\nquestion = "?"\nprotocol = "own"\nkind = "curves"\n'
        'metric = "test_loss"\nselect_on = "validation_loss"\n'
        '[base]\ntask = "noisy-regression"\nsteps = 20\n[[columns]]\nname = "regression"\n'
        '[[methods]]\nname = "AdamW"\noptimizer = "adamw"\n'
    )
    result = read_spec(file).at("full").run(tmp_path / "runs", workers=1)
    (row,) = next(table for table in result.tables if table.title == "Time and memory").rows
    assert (row[:2], row[-1]) == (("AdamW", "regression"), "8")
