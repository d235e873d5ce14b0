"""Data errors. Each message names the file, the column if any, and the expected contents."""

from __future__ import annotations


class MissingDataError(FileNotFoundError):
    """A file or folder does not exist, or the hub cannot be reached."""


class DataError(ValueError):
    """The data cannot be used with the given options."""
