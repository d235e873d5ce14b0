"""Errors of data. Every message names the file, the column if there is one, and what was expected."""

from __future__ import annotations


class MissingDataError(FileNotFoundError):
    """A file or folder does not exist, or the hub cannot be reached."""


class DataError(ValueError):
    """The data cannot be used with the given options."""


class SchemaError(DataError):
    """A column is missing or holds values of another type."""


class CorruptFileError(DataError):
    """A file is truncated or damaged."""


class LabelError(DataError):
    """A label is missing or is not one of the classes."""
