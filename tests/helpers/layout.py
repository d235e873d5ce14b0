"""Write the map in CONTRIBUTING.md from the first sentence of each module: ``python tests/helpers/layout.py``."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
BLOCK = re.compile(r"(?<=```text\n)src/borat/\n.*?(?=```)", re.DOTALL)
WIDTH = 118
INDENT = 20


def layout() -> str:
    """Return the map: modules and packages with their first sentences, and the names of the packages' modules."""
    core, lab = ROOT / "src" / "borat", ROOT / "src" / "borat" / "lab"
    lines = ["src/borat/", *_modules(core, 1)]
    for group in sorted(path.parent for path in core.glob("*/__init__.py") if path.parent != lab):
        lines += _group(group, 1)
    lines += [*_entry("lab/", sentence(lab / "__init__.py"), 1), *_modules(lab, 2)]
    for group in sorted(path.parent for path in lab.glob("*/__init__.py")):
        lines += _group(group, 2)
    return "\n".join(lines) + "\n"


def _modules(folder: Path, depth: int) -> list[str]:
    return [
        line
        for path in sorted(folder.glob("*.py"))
        if not path.stem.startswith("__")
        for line in _entry(path.name, sentence(path), depth)
    ]


def _group(folder: Path, depth: int) -> list[str]:
    names = [p.stem for p in sorted(folder.glob("*.py")) if p.stem != "__init__"]
    names += [f"{p.parent.name}/" for p in sorted(folder.glob("*/__init__.py"))]
    inside = textwrap.wrap("  ".join(names), WIDTH, initial_indent=" " * INDENT, subsequent_indent=" " * INDENT)
    return [*_entry(f"{folder.name}/", sentence(folder / "__init__.py"), depth), *inside]


def _entry(name: str, text: str, depth: int) -> list[str]:
    head = f"{'  ' * depth}{name}".ljust(INDENT - 1) + " "
    return textwrap.wrap(head + text, WIDTH, subsequent_indent=" " * INDENT, drop_whitespace=True)


def sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", first.replace("``", ""))[0].removesuffix(".")


if __name__ == "__main__":
    PAGE.write_text(BLOCK.sub(lambda _: layout(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
