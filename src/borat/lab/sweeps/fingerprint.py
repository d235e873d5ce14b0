"""Fingerprints of functions, which change with their code and the values that they use.

Pickles are unsuitable: they refer to a function of a module by its name, so that a change would go unnoticed, and they
differ between processes if the code contains a set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any


def fingerprint(function: Callable[..., Any]) -> str:
    """Return a string that identifies a function in its current version.

    It covers the name, the code, the defaults, and the values that the function uses from around it, including
    functions of the same module. It ignores the code of libraries, and the contents of their objects.
    """
    inner = function
    while isinstance(inner, partial):
        inner = inner.func
    return _describe(function, getattr(inner, "__module__", None), {})


def _describe(value: Any, module: str | None, seen: dict[int, Any]) -> str:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if not isinstance(value, tuple | frozenset | CodeType):  # which cannot contain themselves
        if id(value) in seen:
            return "again"
        seen[id(value)] = value  # kept alive, so that its id is not reused
    thing = value if hasattr(value, "__qualname__") else type(value)
    parts = ", ".join(_describe(part, module, seen) for part in _parts(value, module))
    return f"{thing.__module__}.{thing.__qualname__}({parts})"


def _parts(value: Any, module: str | None) -> list[Any]:
    """Return the parts of a value."""
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)  # its order differs between processes
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in item]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, CodeType):
        return [value.co_code, value.co_names, value.co_consts]
    if isinstance(value, FunctionType) and value.__module__ == module:
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        around = [value.__globals__.get(name) for name in sorted(_names(value.__code__))]
        return [value.__code__, value.__defaults__, value.__kwdefaults__, cells, around]
    if type(value).__module__ == module:  # an object of the user's, which may be the function
        return [type(value).__dict__.get("__call__"), getattr(value, "__dict__", {})]
    return []


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(c) for c in code.co_consts if isinstance(c, CodeType)))
