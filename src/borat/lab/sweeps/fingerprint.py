"""Fingerprints of functions, which change with their code and the values that they use.

The hash of `datasets` (``datasets.fingerprint.Hasher``), which pickles the function, knows one of a module by its name
alone, so that a change would go unnoticed; and it differs from one process to the next where the code holds a set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any


def fingerprint(function: Callable[..., Any]) -> str:
    """Return a text that tells a function from others, and from itself before a change.

    That is its name, its code, its defaults and the values that it uses from around it, functions of the same module
    included. Libraries are not looked at, nor is what objects other than plain values and functions hold.
    """
    inner = function
    while isinstance(inner, partial):
        inner = inner.func
    return _describe(function, getattr(inner, "__module__", None), {})


def _describe(value: Any, module: str | None, seen: dict[int, Any]) -> str:
    """A text that changes with the value; of what is not understood, only the type."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if id(value) in seen:
        return "again"
    seen[id(value)] = value  # kept, or something else could come to have its id
    describe = partial(_describe, module=module, seen=seen)
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(describe, value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{describe(key)}: {describe(item)}' for key, item in value.items())}}}"
    if isinstance(value, partial):
        return f"partial({describe(value.func)}, {describe(value.args)}, {describe(value.keywords)})"
    if isinstance(value, MethodType):
        return f"{describe(value.__func__)} of {describe(value.__self__)}"
    if isinstance(value, FunctionType):
        return _describe_function(value, describe) if value.__module__ == module else _name(value)
    if hasattr(value, "__qualname__"):
        return _name(value)
    if type(value).__module__ == module:  # an object of the user's own, which may be what is called
        called, held = type(value).__dict__.get("__call__"), getattr(value, "__dict__", {})
        return f"{_name(type(value))} {describe(called)} {describe(held)}"
    return _name(type(value))


def _describe_function(function: FunctionType, describe: Callable[[Any], str]) -> str:
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    around = [function.__globals__.get(name) for name in sorted(_names(function.__code__))]
    outside = [function.__defaults__, function.__kwdefaults__, cells, around]
    return f"{_name(function)} {_instructions(function.__code__)} {', '.join(map(describe, outside))}"


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(c) for c in code.co_consts if isinstance(c, CodeType)))


def _instructions(code: CodeType) -> str:
    inner = [_instructions(c) if isinstance(c, CodeType) else _constant(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names!r} {inner!r}"


def _constant(value: Any) -> str:
    """Its text; the order of a set differs from one process to the next."""
    return f"frozenset({sorted(map(repr, value))})" if isinstance(value, frozenset) else repr(value)
