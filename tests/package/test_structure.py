"""How the package is built: imports point one way, a name means one thing, and the map is true."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import layout

SOURCE = Path(__file__).parents[2] / "src" / "borat"
LAB = SOURCE / "lab"
ORDER = (
    ("files", "methods", "metrics", "robustness", "tables"),
    ("figures", "settings"),
    ("config",),
    ("baselines", "data", "models"),
    ("store",),
    ("explain", "report", "theory", "timing", "training"),
    ("sweeps",),
    ("reproduce",),
    ("cli",),
)
"""Each part of the lab may import those of the lines above it, and none of its own line."""
REPORT_SEES = {"config", "figures", "files", "methods", "metrics", "robustness", "store"}
WRITES = re.compile(r"\.(write_text|write_bytes|savefig|to_parquet)\(|torch\.save\(|open\(.[wax]b?.[,)]|Summary\w+\(")


def imports_of(path: Path) -> set[str]:
    """The modules that a module imports, at its top or later."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def parts_of_lab(modules: set[str]) -> set[str]:
    return {name.split(".")[2] for name in modules if name.startswith("borat.lab.") and name.split(".")[2] in RANK}


RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}


def test_every_part_of_the_lab_has_its_place():
    parts = {path.stem for path in LAB.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert parts - {"__init__"} == set(RANK)
    assert len(list(LAB.glob("*.py"))) <= 10, "a newcomer must find the file"


@pytest.mark.parametrize("part", RANK)
def test_imports_of_the_lab_point_one_way(part):
    paths = [LAB / f"{part}.py"] if (LAB / f"{part}.py").is_file() else list((LAB / part).rglob("*.py"))
    for path in paths:
        for other in parts_of_lab(imports_of(path)) - {part}:
            assert RANK[other] < RANK[part], f"{path.relative_to(SOURCE)} must not import {other}"
            assert part != "report" or other in REPORT_SEES


def test_the_core_never_imports_the_lab():
    for path in SOURCE.rglob("*.py"):
        if LAB not in path.parents and path.name != "__main__.py":
            assert not any(name.startswith("borat.lab") for name in imports_of(path)), path


def test_files_are_written_in_one_way():
    """Whole or not at all, by ``write_atomically``; what else writes is known, and says why."""
    sources = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    assert {name for name, text in sources.items() if WRITES.search(text)} == {
        *("lab/files.py", "lab/figures.py", "lab/data/cache.py", "lab/store/run.py"),  # what they write is given to it
        *("lab/store/lock.py", "lab/sweeps/jobs.py", "lab/training/tensorboard.py"),  # a lock, and what grows
    }


def test_no_class_has_the_name_of_another():
    """Nor has a type alias of the lab."""
    names = Counter()
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names.update(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        if LAB in path.parents:
            targets = [node.targets[0] for node in tree.body if isinstance(node, ast.Assign)]
            named = [target.id for target in targets if isinstance(target, ast.Name)]
            names.update(name for name in named if name[0].isupper() and not name.isupper())
    names.subtract({"T": names["T"]})
    assert [name for name, count in names.items() if count > 1] == []


def test_the_map_is_true():
    """Else run ``make map``, and see whether the first sentences of the modules say what they are."""
    assert layout.BLOCK.search(layout.PAGE.read_text(encoding="utf-8"))[0] == layout.layout()


def test_every_module_says_what_it_is():
    for path in SOURCE.rglob("*.py"):
        assert layout.sentence(path), path
