"""Strict pydantic models for values from files, flags and Python, with readable errors."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from borat.lab.files import unknown

T = TypeVar("T")
Listed = Annotated[tuple[T, ...], Field(strict=False)]
"""A tuple in Python, which is a list in files."""
EXPECTED = {"int": "of type int", "float": "of type float", "string": "of type str", "bool": "of type bool"}
EXPECTED |= {"tuple": "a list", "list": "a list", "dict": "a table", "model": "a table"}
"""Expected types, by the first word of pydantic's error types."""
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""Pydantic's error types for an unknown key."""


class StrictModel(BaseModel):
    """Frozen model without type conversion, except of integers to floats."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError(explain(error, type(self).model_fields)) from None


def one_of(*allowed: str) -> AfterValidator:
    """Return a validator for a string that must be one of ``allowed``."""

    def check(value: str) -> str:
        if value not in allowed:
            raise PydanticCustomError("one_of", "one of {allowed}", {"allowed": ", ".join(allowed)})
        return value

    return AfterValidator(check)


def explain(error: ValidationError, fields: Mapping[str, Any]) -> str:
    """Return the message of one error, unknown keys first: location, allowed values, given value.

    Args:
        error: raised by pydantic.
        fields: the known keys, and a description of each.
    """
    found = min(error.errors(), key=lambda each: each["type"] not in UNKNOWN)
    *above, last = found["loc"] or ("",)
    where = f" of {'.'.join(map(str, above))}" if above else ""
    if found["type"] in UNKNOWN:
        return str(unknown("key", str(last), fields))
    if found["type"] == "missing":
        return f"{last} is missing"
    if found["type"] == "value_error":  # raised by a validator of ours, perhaps in a nested model
        place = ".".join(map(str, found["loc"]))
        return f"{place}: {found['ctx']['error']}" if place else str(found["ctx"]["error"])
    annotation = getattr(fields.get(str(found["loc"][0])), "annotation", None)
    or_none = " or none" if NoneType in get_args(annotation) else ""
    return f"{last}{where} must be {_expected(found)}{or_none}, got {found['input']!r}"


def explain_flag(error: ValidationError) -> str:
    """Return the error message of a flag: allowed values, given value in quotes."""
    found = error.errors()[0]
    return f"must be {_expected(found)}, got {found['input']!r}"


def _expected(found: ErrorDetails) -> str:
    text = found["msg"].removeprefix("Input should be ")
    text = text.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
    return EXPECTED.get(found["type"].partition("_")[0], text)
