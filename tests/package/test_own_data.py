"""The programs and commands of the page on your own data, started in an empty folder."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from borat.lab import read_runs
from borat.lab.cli import app
from processes import run_program

PAGE = (Path(__file__).parents[2] / "docs" / "your-own-data.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CONSOLE = "".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = CONSOLE.replace("\\\n", " ").splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with the files of the page's first program; a test below runs the second."""
    assert len(PROGRAMS) == 2
    folder = tmp_path_factory.mktemp("empty")
    run_program(PROGRAMS[0], folder)
    return folder


@pytest.fixture(autouse=True)
def _here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("BORAT_CACHE", str(folder / "cache"))


def borat(command: str):
    return CliRunner().invoke(app, shlex.split(command)[1:], env={"COLUMNS": "200", "TERM": "dumb"})


def test_every_command(folder):
    """Run the commands in the order of the page, because the reports read the runs of the sweeps."""
    outputs = {}
    for command in COMMANDS:
        result = borat(command)
        assert result.exit_code == 0, f"{command}\n{result.output}"
        outputs[command] = result.output
    assert len(outputs) == 9
    trained = [output for command, output in outputs.items() if " train " in command]
    accuracies = [float(found[1]) for output in trained if (found := re.search(r"test accuracy ([\d.]+)", output))]
    losses = [float(found[1]) for output in trained if (found := re.search(r"test loss ([\d.]+), test perpl", output))]
    assert len(accuracies) == 3
    assert min(accuracies) > 0.6, "three and ten classes"
    assert len(losses) == 2
    assert max(losses) < math.log(90), "better than guessing among the characters"
    runs = read_runs(folder / "flower-runs")
    assert (len(runs), set(runs.status)) == (6, {"finished"})
    assert (folder / "flower-runs" / "report.html").is_file()
    assert read_runs(folder / "text-runs").perplexity.notna().all()


def test_missing_column_options_name_the_columns():
    quoted = re.search(r"the error names the columns: \*(.*?)\*", PAGE, re.DOTALL)[1]
    result = borat("borat train --data images --data-dir tables --model cnn")
    assert result.exit_code == 2
    assert " ".join(quoted.split()) in " ".join(result.output.replace("│", " ").split())


def test_a_run_rejects_changed_data():
    flags = "--model mlp-4 --batch-size 16 --lr 1 --epochs 1 --label-column species --out one"
    Path("other.csv").write_text(Path("flowers.csv").read_text().replace("5.1,3.5", "5.2,3.5"))
    assert borat(f"borat train --data csv --data-dir flowers.csv {flags}").exit_code == 0
    result = borat(f"borat train --data csv --data-dir other.csv {flags}")
    assert result.exit_code == 2
    assert "holds a run on other data" in " ".join(result.output.replace("│", " ").split())


def test_a_sweep_rejects_changed_data():
    Path("another.csv").write_text(Path("flowers.csv").read_text().replace("5.1,3.5", "5.2,3.5"))
    flags = "--model mlp-4 --batch-size 16 --lr 1 --epochs 1 --label-column species --out several --workers 1"
    assert borat(f"borat sweep --data csv --data-dir flowers.csv {flags}").exit_code == 0
    for file, message in (("another.csv", "holds a run on other data"), ("nowhere.csv", "does not exist")):
        result = borat(f"borat sweep --data csv --data-dir {file} {flags}")
        assert result.exit_code == 2
        assert message in " ".join(result.output.replace("│", " ").split())


def test_an_error_of_a_sweep_is_reported_once():
    result = borat("borat sweep --data csv --data-dir flowers.csv --lr 0.1,1 --epochs 1 --workers 1 --out failed")
    assert result.exit_code == 2
    assert result.output.count("has no column 'label', only sepal length") == 1, "before anything starts"
    assert "label_column" in result.output
    assert not Path("failed").exists()


def test_a_folder_that_looks_like_markup():
    command = "borat train --data csv --data-dir flowers.csv --label-column species --model mlp-4 --batch-size 16"
    result = borat(f"{command} --epochs 1 --out 'runs [/red]'")
    assert result.exit_code == 0, result.output
    assert "stored in runs [/red]/" in result.output


def test_free_borat_beside_adamw(folder):
    output = run_program(PROGRAMS[1], folder)
    found = re.findall(r"finished {'method': '(\w+)'.*} {'accuracy': ([\d.]+)}", output)
    assert [method for method, _ in found] == ["FreeBORAT", "AdamW", "AdamW", "AdamW"]
    accuracies = [float(accuracy) for _, accuracy in found]
    assert accuracies[0] > 0.9, "at its defaults"
