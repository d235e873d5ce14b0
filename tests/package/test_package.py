"""The package and its documentation as a newcomer meets them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import borat
from borat.lab.cli import app
from borat.lab.config import LOSSES, SCHEDULES
from borat.lab.methods import METHODS
from processes import run_program

ROOT = Path(__file__).parents[2]


def test_import_needs_torch_and_numpy_alone():
    """Import borat without the packages of the extras; PyTorch's compiler is not imported either, which is slow."""
    code = """
import sys
for name in ("sklearn", "scipy", "matplotlib", "rich", "typer", "quadprog", "hypothesis", "jax", "optax"):
    sys.modules[name] = None
import borat, borat.constraints, borat.losses
borat.BORAT, borat.FreeBORAT
assert not any(name.startswith(("borat.lab", "torch._dynamo")) for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_command_without_the_lab_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None; from borat.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "typer is missing: pip install 'borat[lab]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_jax_that_is_missing_is_named():
    code = "import sys; sys.modules['jax'] = None; import borat.jax"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "jax is missing: pip install 'borat[jax]'" in done.stderr


def test_public_names():
    assert set(borat.__all__) == {"ALIG", "BORAT", "DualSolution", "FreeBORAT", "StepInfo", "solve_dual"}
    assert all(hasattr(borat, name) for name in borat.__all__)
    assert set(borat.__all__) <= set(dir(borat))
    assert not hasattr(borat, "SGD")


def test_the_docs_list_all_choices():
    rows = dict(re.findall(r"^\| `--(\w+)` \| (.*) \|$", (ROOT / "docs" / "lab.md").read_text(encoding="utf-8"), re.M))
    for flag, known in (("optimizer", METHODS), ("loss", LOSSES), ("schedule", SCHEDULES)):
        assert sorted(rows[flag].split(", ")) == sorted(known)


def pages() -> list[str]:
    return [
        "README.md",
        "CONTRIBUTING.md",
        *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
    ]


def code_of(page: str) -> str:
    """Return the Python blocks of a page as one program."""
    return "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL))


@pytest.mark.parametrize("page", [page for page in pages() if code_of(page) and page != "docs/your-own-data.md"])
def test_code_blocks_run(page, tmp_path):
    """test_own_data.py runs the blocks of docs/your-own-data.md, between its commands."""
    if page == "docs/jax.md":
        pytest.importorskip("optax", reason="needs the jax extra")
    run_program(code_of(page), tmp_path)


def commands_of(page: str) -> list[list[str]]:
    """Return the commands of a page's console blocks, split as by a shell."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("page", [page for page in pages() if commands_of(page)])
def test_commands_exist(page, tmp_path, monkeypatch):
    """Check the names and flags of the commands without running them: some train for days."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    targets = re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    borat_commands = get_command(app).commands
    for program, *arguments in commands_of(page):
        if program == "borat":
            borat_commands[arguments[0]].make_context(arguments[0], arguments[1:])
        elif program == "make":
            assert arguments[0] in targets
        else:
            assert program in ("pip", "python", "torchrun", "tensorboard", "git") or re.match(
                r"\.venv\w*/bin/", program
            )


@pytest.mark.parametrize("page", pages())
def test_links_resolve(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            assert (ROOT / page).parent.joinpath(target).exists(), target


def test_differences_name_tests_that_exist():
    files = list((ROOT / "tests").rglob("test_*.py"))
    tests = "\n".join(path.read_text(encoding="utf-8") for path in files)
    page = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
    names = re.findall(r"\btest_\w+(?!\.py)\b", page)
    assert len(names) > 10
    for name in names:
        assert name in tests or any(path.stem == name for path in files), name
