"""Structure of the package: the direction of imports, unique names, and the map in CONTRIBUTING."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import layout

SOURCE = Path(__file__).parents[2] / "src" / "borat"
LAYERS = ("_checks", "_native", "_numbers", "_vectors", "_state", "_optim")
"""Layers of the core: each may import those before it; all other modules may import any of them."""
WITHOUT_TORCH = ("ops", "dual", "dual_batched", "bundle", "rolling", "step_info")
"""Modules of ``_numbers`` that do not depend on PyTorch."""
LAB = SOURCE / "lab"
ORDER = (
    ("files", "methods", "metrics", "robustness", "signals", "tables"),
    ("figures", "strict"),
    ("config",),
    ("baselines", "data", "models"),
    ("store", "tasks"),
    ("explain", "report", "timing", "training"),
    ("sweeps",),
    ("reproduce",),
    ("cli",),
)
"""Parts of the lab: each may import those of the lines above it, but none of its own line."""
REPORT_SEES = {"config", "figures", "files", "methods", "metrics", "robustness", "store", "tables"}
WRITES = re.compile(r"\.(write_text|write_bytes|savefig|to_parquet)\(|torch\.save\(|open\(.[wax]b?.[,)]|Summary\w+\(")


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in SOURCE.rglob("*.py")}


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes, also inside functions, except imports for type checkers only."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from executed(child)


def imports_of(path: Path) -> set[str]:
    """Return the modules of borat that a module imports, at the top or inside functions."""
    module, found = module_of(path), set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in executed(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            submodules = {f"{source}.{alias.name}" for alias in node.names}
            found |= submodules & MODULES.keys() or {source}
    return found & MODULES.keys()


def room_of(module: str) -> str:
    """Return ``__main__``, ``lab``, ``integrations`` or ``jax`` for their modules, and ``core`` for all others."""
    part = module.removeprefix("borat").removeprefix(".").partition(".")[0]
    return part if part in ("__main__", "lab", "integrations", "jax") else "core"


def parts_of_lab(modules: set[str]) -> set[str]:
    return {name.split(".")[2] for name in modules if name.startswith("borat.lab.")}


RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}


def test_every_layer_of_the_core_is_listed():
    private = {path.stem for path in SOURCE.iterdir() if path.name.startswith("_") and not path.name.startswith("__")}
    assert private == set(LAYERS)
    assert len(list(SOURCE.glob("*.py"))) <= 10, "a newcomer must find the file"


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_of_the_core_point_one_way(layer):
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    paths = [SOURCE / f"{layer}.py"] if (SOURCE / f"{layer}.py").is_file() else list((SOURCE / layer).rglob("*.py"))
    for path in paths:
        for name in imports_of(path):
            top, *rest = name.split(".")
            assert top != "borat" or not rest or rest[0] in allowed, f"{path.relative_to(SOURCE)} imports {name}"


def test_the_numbers_do_not_import_torch():
    names = ["borat._checks", *(f"borat._numbers.{name}" for name in WITHOUT_TORCH)]
    code = f"import sys, {', '.join(names)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_jax_does_not_import_torch():
    pytest.importorskip("optax", reason="needs the jax extra")
    code = "import sys, borat.jax; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


def test_every_part_of_the_lab_is_listed():
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


def test_imports_have_no_cycles():
    """Lazy imports inside functions count."""
    TopologicalSorter({module: imports_of(path) - {module} for module, path in MODULES.items()}).prepare()


def test_rooms_import_one_way():
    allowed = {
        "core": {"core"},
        "integrations": {"core", "integrations"},
        "jax": {"core", "jax"},
        "lab": {"core", "jax", "lab"},
        "__main__": {"lab"},
    }
    for module, path in MODULES.items():
        for other in imports_of(path):
            assert room_of(other) in allowed[room_of(module)], f"{module} must not import {other}"


def test_lazy_imports_are_seen():
    """Known imports inside functions are found; otherwise the tests above could not fail."""
    assert "borat.lab.cli" in imports_of(SOURCE / "__main__.py")
    assert "borat.lab.training.train" in imports_of(LAB / "sweeps" / "jobs.py")


def test_files_are_written_atomically():
    """Only the listed modules write files without ``write_atomically``."""
    sources = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    assert {name for name, text in sources.items() if WRITES.search(text)} == {
        *("lab/files.py", "lab/data/cache.py", "lab/store/run.py"),  # writers that are passed to it, and a lock
        *("lab/sweeps/jobs.py", "lab/training/tensorboard.py"),  # files that grow
    }


def test_class_names_are_unique():
    """The names of the lab's type aliases as well."""
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


def test_the_map_is_current():
    """If this fails, run ``make map``."""
    assert layout.BLOCK.search(layout.PAGE.read_text(encoding="utf-8"))[0] == layout.layout()


def test_every_module_has_a_docstring():
    for path in SOURCE.rglob("*.py"):
        assert layout.sentence(path), path
