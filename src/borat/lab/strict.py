"""Values from files, flags and Python: strict types by pydantic, errors in our words."""

from __future__ import annotations

from types import NoneType
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from borat.lab.files import pick

T = TypeVar("T")
Listed = Annotated[tuple[T, ...], Field(strict=False)]
"""A list in a file, a tuple here."""

WANTED = {"int": "of type int", "float": "of type float", "string": "of type str", "bool": "of type bool"}
WANTED |= {"tuple": "a list", "dict": "a table", "model": "a table"}
"""By what pydantic's errors are about."""


class StrictModel(BaseModel):
    """Frozen and typed: a whole number will do where a real one is wanted, nothing else is converted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError(explain(error, type(self))) from None


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Return one mistake, an unknown key before all others: its place, what is allowed there, and what was given."""
    found = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    *above, last = found["loc"] or ("",)
    where = f" of {'.'.join(map(str, above))}" if above else ""
    if found["type"] == "extra_forbidden":
        return _unknown(str(last), model)
    if found["type"] == "missing":
        return f"{last} is missing"
    if found["type"] == "value_error":  # our own, perhaps of a model inside this one
        place = ".".join(map(str, found["loc"]))
        return f"{place}: {found['ctx']['error']}" if place else str(found["ctx"]["error"])
    field = model.model_fields.get(str(found["loc"][0]))
    or_none = " or none" if field is not None and NoneType in get_args(field.annotation) else ""
    return f"{last}{where} must be {_wanted(found)}{or_none}, got {found['input']!r}"


def explain_flag(error: ValidationError) -> str:
    """Return what a flag must be, and its value in quotes."""
    found = error.errors()[0]
    return f"must be {_wanted(found)}, got {found['input']!r}"


def _unknown(name: str, model: type[BaseModel]) -> str:
    try:
        return pick("key", name, model.model_fields)
    except ValueError as error:
        return str(error)


def _wanted(found: ErrorDetails) -> str:
    return WANTED.get(found["type"].partition("_")[0], found["msg"].removeprefix("Input should be "))
