"""Reports from folders of runs: reading, grouping, verdicts and files."""

from __future__ import annotations

import csv
import json
import math
import re

import pytest
from typer.testing import CliRunner

import fabricate
from borat import FreeBORAT
from borat.lab import read_runs
from borat.lab.cli import app
from borat.lab.config import RunConfig
from borat.lab.figures import kind_styles
from borat.lab.methods import sort_labels
from borat.lab.report import write_report
from borat.lab.report.page import embed, make_data
from borat.lab.report.static import file_names
from borat.lab.report.tasks import group, name_kind, short_names
from borat.lab.robustness import Trial, describe_ranges, usable
from borat.lab.store.records import Experiment, collect
from borat.lab.store.run import Metrics, Run
from borat.lab.training.train import train


def invoke(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "TERM": "dumb"})


def written(text: str) -> str:
    """Return a command's output without line breaks and boxes."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid")
    fabricate.write_grid(folder, radii=(50.0, 100.0), seeds=2, epochs=4)
    return folder


# The verdict


def test_usable_by_hand():
    trials = [
        *(Trial("SGD", lr, r, a) for lr, r, a in [(0.1, 50, 0.90), (0.1, 100, 0.80), (1.0, 50, 0.5), (1.0, 100, 0.5)]),
        *(
            Trial("BORAT3", lr, 50, a)
            for lr, a in [(0.01, 0.88), (0.1, 0.70), (1.0, 0.89), (10.0, 0.90), (30.0, 0.885)]
        ),
    ]
    sgd, borat = usable(trials)
    assert (sgd.lrs, sgd.decades, sgd.cells, sgd.total) == ((0.1,), 0.0, 1, 4)
    assert borat.lrs == (0.01, 1.0, 10.0, 30.0), "0.88 is exactly two points below the best"
    assert borat.decades == pytest.approx(math.log10(30.0)), "0.1 failed, so 0.01 is not part of the stretch"
    assert (borat.cells, borat.total) == (4, 5)
    assert describe_ranges([sgd, borat]) == "Decades of usable learning rates: 1.5 for BORAT3, 0 for SGD."


def test_usable_averages_seeds_and_rejects_a_diverged_one():
    seeds = {0.1: (0.90, 0.92), 1.0: (0.93, 0.86), 10.0: (0.93, math.nan)}
    (result,) = usable(Trial("SGD", lr, None, accuracy) for lr, values in seeds.items() for accuracy in values)
    assert result.lrs == (0.1, 1.0), "means 0.91 and 0.895, within two points of the best mean"
    assert (result.cells, result.total) == (2, 3)


def test_usable_without_anything_usable():
    (result,) = usable([Trial("SGD", lr, None, math.nan) for lr in (0.0, 0.1, 1.0)])
    assert (result.tried, result.lrs, result.decades, result.cells) == ((0.1, 1.0), (), 0.0, 0)
    assert describe_ranges([result]) == "Decades of usable learning rates: none for SGD."
    assert usable([]) == []


# Reading


@pytest.mark.parametrize("kinds", [[1], {"M": None}, {"x": "y"}, "SGD"])
def test_odd_kinds_are_a_note(tmp_path, kinds):
    fabricate.write_run(tmp_path, RunConfig(epochs=2), accuracy=0.5)
    odd = Run.create(tmp_path / "odd", RunConfig(lr=3.0))
    odd.write_metrics(Metrics("finished", [{"epoch": 0, "kinds": kinds}]))
    found = collect(tmp_path)
    assert len(found.runs) == 1
    assert "odd cannot be read in full, skipped (epochs.0: kinds must hold names and counts" in found.notes[0]


def test_a_kind_has_one_look():
    alone = kind_styles(["4 pieces + bound"])["4 pieces + bound"]
    among = kind_styles(["2 pieces", "1 piece", "4 pieces + bound", "3 pieces", "bound only"])
    assert among["4 pieces + bound"] == alone
    assert len({(style.light, style.hatch) for style in among.values()}) == len(among)


def test_notes_on_what_cannot_be_read(tmp_path):
    good = fabricate.write_run(tmp_path, RunConfig(epochs=2), accuracy=0.5)
    cut = fabricate.write_run(tmp_path / "cut", RunConfig(lr=1.0, epochs=2), accuracy=0.5)
    (cut.path / "metrics.json").write_text((cut.path / "metrics.json").read_text()[:50])
    Run.create(tmp_path / "early", RunConfig(lr=2.0))
    Run.create(tmp_path / "odd", RunConfig(lr=3.0)).write_metrics(Metrics(status="exploded"))
    foreign = {"bert": '{"architectures": ["Bert"]}', "list": "[1, 2]", "broken": "{", "text": '"x"', "empty": "{}"}
    for name, text in {**foreign, "lone": '{"lr": 1.0}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    (tmp_path / "experiment.json").write_text('{"title": "no more"}')
    found = collect(tmp_path)
    assert list(found.runs.index) == [good.path.name, "early"]
    notes = "\n".join(found.notes)
    for words in (
        "bert holds no run of borat, skipped (unknown key 'architectures'",
        "broken holds no run of borat, skipped (config.json cannot be read",
        "empty, lone (each) holds no run of borat, skipped (config.json does not describe a run: it has no data",
        "list, text (each) holds no run of borat, skipped (config.json cannot be read",
        f"cut/{cut.path.name} cannot be read in full, skipped (metrics.json cannot be read",
        "odd cannot be read in full, skipped (status must be one of",
        "early has no finished epoch yet",
        "has an experiment.json that cannot be read (source is missing)",
    ):
        assert words in notes
    assert str(tmp_path) not in notes


def test_a_copy_is_no_further_seed(tmp_path):
    config = RunConfig(epochs=4)
    fabricate.write_run(tmp_path / "a", config, accuracy=0.5, status="running", epochs=2)
    fabricate.write_run(tmp_path / "b", config, accuracy=0.5)
    found = collect(tmp_path)
    assert list(found.runs.index) == [f"b/{config.digest}"], "the one that is further"
    assert found.notes == [f"a/{config.digest} repeats a run that is shown, skipped"]


def test_fields_may_be_missing_or_not_finite(tmp_path):
    run = Run.create(tmp_path / "run", RunConfig(epochs=2))
    run.write_metrics(Metrics("finished", [{"epoch": 0}, {"epoch": 1, "train_loss": math.nan, "kinds": None}], {}))
    summary = write_report(tmp_path, tmp_path / "page.html", static=tmp_path / "figures")
    assert summary.counts == {"finished": 1, "diverged": 0, "failed": 0, "running": 0}


# Grouping


def test_means_over_seeds(grid):
    (task,) = group(collect(grid))
    setting = task.grid.cells["BORAT3"][1.0, 50.0]
    values = list(setting.runs.test_accuracy)
    assert len(values) == 2
    assert setting.result.mean == pytest.approx(sum(values) / 2)
    assert setting.result.std == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2)), "the sample's"
    losses = [history[3]["train_loss"] for history in setting.runs.history]
    assert setting.curve("train_loss")[3].mean == pytest.approx(sum(losses) / 2)


@pytest.mark.parametrize("lost", ["diverged", "failed"])
def test_lost_seeds_are_counted_not_averaged(tmp_path, lost):
    config = RunConfig(epochs=4)
    for seed, status in enumerate(("finished", "finished", lost)):
        fabricate.write_run(tmp_path, config.replace(seed=seed), accuracy=0.8 + 0.1 * seed, status=status)
    (task,) = group(collect(tmp_path))
    (setting,) = task.settings
    assert (setting.status, setting.lost, setting.result.runs) == (lost, 1, 2)
    assert setting.result.mean == pytest.approx(0.85)
    assert math.isnan(setting.outcome), "the verdict does not call it usable"
    row = make_data("", "", collect(tmp_path), [task])["table"]["settings"][0]
    assert f"2 finished, 1 {lost}" in row


@pytest.mark.parametrize("config", [RunConfig(task="vae"), RunConfig(train_limit=64, epochs=1, batch_size=16)])
def test_a_run_that_raises_is_shown_as_failed(tmp_path, monkeypatch, config):
    def refuse(*arguments, **options):
        raise RuntimeError("NaN is refused")

    monkeypatch.setattr(FreeBORAT, "step", refuse)
    with pytest.raises(RuntimeError, match="NaN is refused"):
        train(config, tmp_path / "run")
    found = collect(tmp_path)
    assert list(found.runs.status) == ["failed"]
    assert found.notes == []
    (task,) = group(found)
    data = make_data("", "", found, [task])
    assert data["tasks"][0]["settings"][0]["status"] == "failed"
    assert str(write_report(tmp_path, tmp_path / "page.html")) == "1 run (1 failed)"


def test_tasks_and_methods_in_order(tmp_path):
    changed = ({"loss": "hinge"}, {"label_noise": 0.1}, {"bundle_size": 5}, {"optimizer": "adam"}, {"optimizer": "sgd"})
    for changes in changed:
        fabricate.write_run(tmp_path, RunConfig(**{"epochs": 1, **changes}), accuracy=0.5)
    tasks = group(collect(tmp_path))
    assert short_names(tasks) == ["cross-entropy", "cross-entropy, label noise 0.1", "multi-class hinge"]
    assert tasks[0].methods == ["SGD", "FreeBORAT5", "Adam"]
    assert len(set(file_names(tasks))) == 3
    assert sort_labels(["Adam", "BORAT4", "BORAT5", "SGD, cosine", "ALI-G", "SGD"]) == [
        "SGD", "ALI-G", "BORAT5", "BORAT4", "Adam", "SGD, cosine",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "second", "changes"),
    [
        ("heatmaps", "radius", {"radii": (1.0, 2.0)}),
        ("heatmaps", "radius", {"radii": (None, 2.0)}),
        ("lines", None, {"radii": (None,)}),
        ("dots", None, {"radii": (None,), "lrs": (0.1,)}),
        ("heatmaps", "weight_decay", {"methods": [{"optimizer": "adam", "weight_decay": w} for w in (0.0, 0.1)]}),
        ("lines", None, {"methods": [{"optimizer": "adam", "momentum": m} for m in (0.0, 0.5)]}),
    ],
)
def test_the_form_follows_what_was_varied(tmp_path, form, second, changes):
    fabricate.write_grid(tmp_path, **{"epochs": 2, "radii": (None,), **changes})
    (task,) = group(collect(tmp_path))
    assert (task.grid.form, task.grid.second) == (form, second)
    write_report(tmp_path, tmp_path / "page.html")


def test_the_best_is_chosen_on_validation_among_finished_runs(tmp_path):
    accuracies = {0.1: ("finished", 0.7), 1.0: ("finished", 0.8), 10.0: ("diverged", 0.9), 20.0: ("running", 0.95)}
    for lr, (status, accuracy) in accuracies.items():
        run = fabricate.write_run(
            tmp_path, RunConfig(optimizer="borat", lr=lr, epochs=4), accuracy=accuracy, status=status
        )
        metrics = run.metrics
        metrics.result = dict.fromkeys(metrics.result, 1.0 - accuracy)  # the test split disagrees
        run.write_metrics(metrics)
    (task,) = group(collect(tmp_path))
    assert task.best["BORAT3"].config.lr == 1.0
    assert set(task.grid.lrs) == {0.1, 1.0, 10.0}, "what is still running is not compared"


def test_kinds_are_shares_of_all_updates(grid):
    found = collect(grid)
    data = make_data("", "", found, group(found))
    for setting in data["tasks"][0]["settings"]:
        totals = [sum(shares) for shares in zip(*setting["kinds"].values(), strict=True)]
        assert totals == pytest.approx([1.0] * (4 if setting["method"] != "SGD" else 0))
    assert {name_kind(kind) for kind in ("0+1+2", "2+3+4")} == {"3 pieces"}


# The page


def test_no_text_can_leave_its_script():
    evil = "</script><script>alert(1)</script><!-- & \u2028"
    text = embed({"name": evil, "losses": [math.nan, math.inf, 0.1]})
    assert not re.search("[<>&]", text)
    assert json.loads(text) == {"name": evil, "losses": [None, None, 0.1]}


def test_the_page_asks_for_nothing(grid, tmp_path):
    write_report(grid, tmp_path / "page.html", title="A & <b>")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<title>A &amp; &lt;b&gt;</title>" in page
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"https?:|url\(|@import|<link(?! rel=\"icon\" href=\"data:)|\ssrc=", markup)
    assert "default-src 'none'" in markup, "the browser forbids it, too"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_the_best_is_chosen_as_the_experiment_says(tmp_path):
    """The smallest training loss and the highest validation accuracy belong to different settings."""
    for name in ("by loss", "by accuracy"):
        for lr, accuracy, loss in ((0.1, 0.9, 0.5), (1.0, 0.8, 0.1)):
            config = RunConfig(optimizer="borat", lr=lr, epochs=1, seed=len(name))
            run = Run.create(tmp_path / name / config.digest, config)
            epoch = {"epoch": 0, "train_loss": loss, "validation_accuracy": accuracy}
            run.write_metrics(Metrics("finished", [epoch], {"test_accuracy": accuracy}))
    of = Experiment(**{**fabricate.EXPERIMENT, "select_on": "train_loss"})
    of.write(tmp_path / "by loss")
    for folder, lr in ((tmp_path / "by loss", 1.0), (tmp_path / "by accuracy", 0.1)):
        (task,) = group(collect(folder))
        assert task.best["BORAT3"].config.lr == lr


def test_an_experiment_is_read_as_it_was_written(tmp_path):
    written = Experiment(**fabricate.EXPERIMENT)
    written.write(tmp_path / "a" / "b")
    (found,) = collect(tmp_path).experiments
    assert found.folder == "a/b"
    assert found.model_copy(update={"folder": ""}) == written


def test_a_table_without_runs_is_a_report(tmp_path):
    Experiment(**fabricate.EXPERIMENT).write(tmp_path)
    assert str(write_report(tmp_path, tmp_path / "page.html")) == "0 runs"
    with pytest.raises(ValueError, match="csv needs runs"):
        write_report(tmp_path, tmp_path / "page.html", csv=tmp_path / "table.csv")


# Files for other programs


def test_csv_holds_every_run_in_full(grid, tmp_path):
    write_report(grid, tmp_path / "page.html", csv=tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    runs = read_runs(grid)
    assert len(rows) == len(runs) == 64
    for run in runs.itertuples():
        row = rows[run.Index]
        assert float(row["lr"]) == run.lr
        assert row["status"] == run.status
        assert float(row["accuracy"]) == run.accuracy


def test_csv_holds_no_formula(tmp_path):
    """Spreadsheets would execute a formula."""
    config = RunConfig(glove="@SUM(1)", train_split="=cmd|'/c calc'!A1", epochs=1, lr=0.5)
    fabricate.write_run(tmp_path / "-1+1", config, accuracy=0.5)
    write_report(tmp_path, tmp_path / "page.html", csv=tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["run"] == f"'-1+1/{config.digest}"
    assert (row["glove"], row["train_split"]) == ("'@SUM(1)", "'=cmd|'/c calc'!A1")
    assert (row["data"], row["lr"]) == ("digits", "0.5")


def test_latex_tables_are_well_formed(grid, tmp_path):
    folder = tmp_path / "runs"
    fabricate.write_grid(folder, radii=(50.0,), methods=[{"optimizer": "sps"}], epochs=2, seeds=2)
    Experiment(**fabricate.EXPERIMENT).write(folder)
    write_report(folder, tmp_path / "page.html", latex=tmp_path / "table.tex")
    text = (tmp_path / "table.tex").read_text(encoding="utf-8")
    tables = re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.DOTALL)
    assert len(tables) == 3
    for alignment, body in tables:
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(alignment) - 1}
    assert r"SGD & \textbf{75.4 $\pm$ 1.2} & 78.3 \\" in text
    assert r"SPS\_max & 0.1 & 75.20 $\pm$ 0.28 &" in text
    assert r"50 \% \& more & supported \\" in text


def test_figures_for_a_paper(tmp_path):
    fabricate.write_grid(tmp_path / "runs", lrs=(1.0, 10.0), radii=(50.0, 100.0), epochs=3)
    fabricate.write_grid(tmp_path / "runs", lrs=(1.0, 10.0), radii=(None,), seeds=2, epochs=1, data="digits")
    summary = write_report(tmp_path / "runs", tmp_path / "page.html", static=tmp_path / "figures")
    names = {path.name.partition("_")[0] + path.suffix for path in summary.figures}
    assert names == {
        f"{name}.{suffix}" for name in ("accuracy", "curves", "heatmaps", "kinds", "step") for suffix in ("png", "pdf")
    }
    assert sorted(summary.figures) == sorted((tmp_path / "figures").iterdir()), "and nothing half written"
    for path in summary.figures:
        assert path.read_bytes().startswith({".png": b"\x89PNG", ".pdf": b"%PDF"}[path.suffix])


# The command


def test_report_prints_where_the_page_is(grid, tmp_path):
    result = invoke(
        "report", grid, "--output", tmp_path / "page.html", "--csv", tmp_path / "t.csv", "--latex", tmp_path / "t.tex"
    )
    assert result.exit_code == 0, result.output
    for words in (str(tmp_path / "page.html"), "64 runs (60 finished, 4 diverged)", f"table in {tmp_path / 't.csv'}"):
        assert words in result.output
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", "t.csv", "t.tex"}


def test_report_is_kept_with_the_runs_and_warns(tmp_path):
    fabricate.write_run(tmp_path, RunConfig(epochs=2), accuracy=0.5)
    Run.create(tmp_path / "early", RunConfig(lr=1.0))
    result = invoke("report", tmp_path)
    assert result.exit_code == 0, result.output
    assert "warning: early has no finished epoch yet" in result.output
    assert (tmp_path / "report.html").is_file()


def test_mistakes_are_explained(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text('{"architectures": []}')
    fabricate.write_run(tmp_path / "runs", RunConfig(epochs=2), accuracy=0.5)
    for arguments, message in [
        ([tmp_path / "nowhere"], "nowhere does not exist"),
        ([tmp_path / "empty"], "empty: train some with `borat train` or `borat sweep`"),
        ([tmp_path / "foreign"], "foreign holds no run of borat, skipped (unknown key 'architectures'"),
        (
            [tmp_path / "runs", "--output", tmp_path / "no" / "page.html"],
            "output must be a file in a folder that exists",
        ),
        ([tmp_path / "runs", "--csv", tmp_path / "no" / "t.csv"], "csv must be a file in a folder that exists"),
        ([tmp_path / "runs", "--output", tmp_path / "empty"], "output must be a file in a folder that exists"),
        ([tmp_path / "foreign" / "config.json"], "config.json is not a folder"),
        ([tmp_path / "runs", "--static", tmp_path / "foreign" / "config.json"], "static must be a folder"),
    ]:
        result = invoke("report", *arguments)
        assert result.exit_code == 2
        assert message in written(result.output)
    assert not list(tmp_path.rglob("*.html"))
