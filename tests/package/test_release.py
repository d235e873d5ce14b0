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


def test_the_readme_of_the_package_has_no_relative_links():
    """Registries show it without the files of the repository. hatch-fancy-pypi-readme assembles it in the same way."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = "".join(map(fragment_text, hook["fragments"]))
    for change in hook["substitutions"]:
        assert re.search(change["pattern"], text), change
        text = re.sub(change["pattern"], change["replacement"], text)
    assert "FreeBORAT(model.parameters())" in text
    assert "pip install borat " in text
    assert "pip install 'borat[lab]'" in text
    assert "](http" in text
    assert not re.findall(r"\]\((?!https?://)[^)]*\)", text)
    assert "-->" not in text


def fragment_text(fragment: dict[str, str]) -> str:
    """Return the text of a fragment; a marker that is missing from the README raises an error."""
    if "text" in fragment:
        return fragment["text"]
    text = (ROOT / fragment["path"]).read_text(encoding="utf-8")
    if "start-after" in fragment:
        text = text[text.index(fragment["start-after"]) + len(fragment["start-after"]) :]
    if "start-at" in fragment:
        text = text[text.index(fragment["start-at"]) :]
    return text[: text.index(fragment["end-before"])]


def test_the_source_archive_names_files_that_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for name in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]:
        assert (ROOT / name.removeprefix("/")).exists(), name
