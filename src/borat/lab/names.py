"""The names in a configuration, looked up before anything is started."""

from __future__ import annotations

import math

from borat.lab.baselines import check_optimizer
from borat.lab.config import RunConfig
from borat.lab.data import find_entry
from borat.lab.models import parse_name


def check_names(config: RunConfig) -> None:
    """Raise a ValueError for a data set, a model or an optimizer that does not exist, or that no run could use."""
    find_entry(config.data)
    parse_name(config.model)
    check_optimizer(config)
    if math.isinf(config.lr):
        raise ValueError(f"lr must be finite, got {config.lr}")
