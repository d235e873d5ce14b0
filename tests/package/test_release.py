"""Release metadata: the version and its date agree wherever they are written."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path

import borat

ROOT = Path(__file__).parents[2]


def released() -> list[tuple[str, str]]:
    """Return version and date of each section of the changelog, the newest first."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\S+)$", text, re.MULTILINE)


def test_the_changelog_starts_with_the_version():
    assert released()[0][0] == borat.__version__


def test_releases_are_in_order():
    versions = [tuple(map(int, version.split("."))) for version, _ in released()]
    days = [date.fromisoformat(day) for _, day in released()]
    assert versions == sorted(set(versions), reverse=True)
    assert days == sorted(days, reverse=True)


def test_the_citation_names_the_newest_release():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    fields = dict(re.findall(r"^(version|date-released): (\S+)$", citation, re.MULTILINE))
    assert (fields["version"], fields["date-released"]) == released()[0]


def test_the_version_is_written_once():
    """The build reads it from the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/borat/__init__.py"


def test_the_source_archive_names_files_that_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for name in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]:
        assert (ROOT / name.removeprefix("/")).exists(), name
