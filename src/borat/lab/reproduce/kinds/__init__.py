"""Kinds of experiments: a module for each, named like the kind, with a subclass of Spec called KIND."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from borat.lab.files import pick
from borat.lab.reproduce.spec import Spec


def find_kind(name: str) -> type[Spec]:
    """Return the class of experiments of this kind."""
    known = [module.name for module in iter_modules(__path__)]
    kind: type[Spec] = import_module(f"{__name__}.{pick('kind', name, known)}").KIND
    return kind
