"""Files and names: atomic writes, TOML and JSON, and one error for unknown names."""

from __future__ import annotations

import difflib
import errno
import json
import os
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(temporary)):  # such as a full disk
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def check_folder(folder: Path) -> None:
    """Raise a ValueError unless the folder exists."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder" if folder.exists() else f"the folder {folder} does not exist")


def check_writable(folder: Path) -> None:
    """Raise an OSError unless files can be written to a folder, or to the parent in which it would be created."""
    place = folder.absolute()
    try:
        tempfile.TemporaryFile(dir=next(path for path in (place, *place.parents) if path.exists())).close()
    except OSError as error:
        if error.errno == errno.ENOSPC:  # clear enough
            raise
        raise OSError(f"the folder {folder} cannot be written ({error.strerror}): choose another") from error


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(values, indent=1, sort_keys=True))


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the contents of a TOML or JSON file."""
    if not path.is_file():
        raise ValueError(f"the file {path} {'is a folder' if path.is_dir() else 'does not exist'}")
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} is not valid: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold keys and values, got a {type(values).__name__}")
    return values


def pick(what: str, name: str, known: Iterable[str]) -> str:
    """Return ``name`` if it is known; otherwise raise a ValueError with a suggestion."""
    known = list(known)
    if name in known:
        return name
    raise unknown(what, name, known)


def unknown(what: str, name: str, known: Iterable[str], *, forms: Iterable[str] = ()) -> ValueError:
    """Return the error for an unknown name, which suggests the nearest known name, or lists all.

    If ``forms`` are given, the known names are examples of them: the error suggests the nearest and lists the forms.
    """
    lower, shapes = {other.lower(): other for other in known}, ", ".join(forms)
    near = difflib.get_close_matches(name.lower(), lower, 1, cutoff=0.0 if shapes else 0.6)
    hint = f"did you mean {lower[near[0]]!r}?" if near else f"known are {', '.join(lower.values()) or 'none'}"
    more = f" Names have one of the forms {shapes}" if shapes else ""
    return ValueError(f"unknown {what} {name!r}; {hint}{more}")
