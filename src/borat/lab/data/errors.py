"""Errors of data. Every message names the file, the column if there is one, and what was expected."""

from __future__ import annotations


class MissingDataError(FileNotFoundError):
    """A file or folder is not there, or the hub cannot be reached."""


class DataError(ValueError):
    """The data cannot be used as asked."""


class UnknownDatasetError(DataError):
    """No data set has this name."""


class SchemaError(DataError):
    """A column is missing or holds something else than expected."""


class CorruptFileError(DataError):
    """A file is truncated or damaged."""


class LabelError(DataError):
    """A label is missing or is not one of the classes."""
