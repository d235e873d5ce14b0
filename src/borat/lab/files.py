"""Files and names: one way to write, one way to read settings, one error for a name that nobody knows."""

from __future__ import annotations

import difflib
import errno
import json
import math
import os
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all, also when the machine stops."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.errno is not None and error.filename is None:  # as where a disk is full
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder" if folder.exists() else f"the folder {folder} does not exist")


def check_writable(folder: Path) -> None:
    """Try to write in a folder, or where it would be made, before something is started that needs it."""
    place = folder.absolute()
    try:
        tempfile.TemporaryFile(dir=next(path for path in (place, *place.parents) if path.exists())).close()
    except OSError as error:
        if error.errno == errno.ENOSPC:  # says enough
            raise
        raise OSError(f"the folder {folder} cannot be written ({error.strerror}): choose another") from error


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(values, indent=1, sort_keys=True))


def without_nan(value: Any) -> Any:
    """The same with None for each number that is not finite, since JSON has none."""
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_mapping(path: Path) -> dict[str, Any]:
    """The contents of a TOML or JSON file."""
    if not path.is_file():
        raise ValueError(f"the configuration file {path} {'is a folder' if path.is_dir() else 'does not exist'}")
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} is not valid: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold keys and values, got a {type(values).__name__}")
    return values


def pick(what: str, name: str, known: Iterable[str]) -> str:
    """The name, if it is known; else an error that says what is."""
    known = list(known)
    if name in known:
        return name
    raise unknown(what, name, known)


def unknown(what: str, name: str, known: Iterable[str], *, forms: Iterable[str] = ()) -> ValueError:
    """The error for a name that nobody knows: it tells the nearest one, or all.

    Where the known names are examples of some forms, it tells the nearest one, however far it is, and the forms.
    """
    lower, shapes = {other.lower(): other for other in known}, ", ".join(forms)
    near = difflib.get_close_matches(name.lower(), lower, 1, cutoff=0.0 if shapes else 0.6)
    hint = f"did you mean {lower[near[0]]!r}?" if near else f"known are {', '.join(lower.values()) or 'none'}"
    more = f" Names have one of the forms {shapes}" if shapes else ""
    return ValueError(f"unknown {what} {name!r}; {hint}{more}")
