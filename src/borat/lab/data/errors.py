"""Errors of data. Every message names the file, the column if there is one, and what was expected."""

from __future__ import annotations


class MissingDataError(FileNotFoundError):
    """A file or folder does not exist, or the hub cannot be reached."""


class DataError(ValueError):
    """The data cannot be used with the given options."""
