"""The same optimizers for JAX, as Optax gradient transformations over the same numbers.

This package imports JAX and Optax, and never PyTorch: ``pip install 'borat[jax]'``.
"""

from __future__ import annotations

try:
    import jax  # noqa: F401
    import optax  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error.name} is missing: pip install 'borat[jax]'", name=error.name) from error

from borat.jax._borat import BoratState, alig, borat, borat_eval_params
from borat.jax._free_borat import FreeBoratState, free_borat, free_borat_eval_params

__all__ = [
    "BoratState",
    "FreeBoratState",
    "alig",
    "borat",
    "borat_eval_params",
    "free_borat",
    "free_borat_eval_params",
]
