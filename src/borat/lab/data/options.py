"""What a caller may ask of a loader."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from borat.checks import check_count, check_flag, is_number

COMMON = ("data_dir", "cache_dir", "label_noise", "seed", "train_limit", "validation_size", "augment")


def default_cache() -> Path:
    """``$BORAT_CACHE``, or ``~/.cache/borat``."""
    return Path(os.environ.get("BORAT_CACHE") or Path.home() / ".cache" / "borat")


@dataclass(frozen=True)
class Options:
    """The arguments of :func:`borat.lab.data.load`, checked."""

    data_dir: Path | None = None
    cache_dir: Path | None = None
    label_noise: float = 0.0
    seed: int = 0
    train_limit: int | None = None
    validation_size: int | None = None
    augment: bool = True
    flatten: bool | None = None
    train_split: str | None = None
    glove: Path | None = None
    image_size: int | None = None
    image_column: str | None = None
    label_column: str | None = None
    window: int | None = None
    examples: int | None = None
    features: int | None = None

    def __post_init__(self) -> None:
        if not is_number(self.label_noise) or not 0.0 <= self.label_noise <= 1.0:
            raise ValueError(f"label_noise must be a probability between 0 and 1, got {self.label_noise!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"seed must be an integer of at least 0, got {self.seed!r}")
        for name in ("train_limit", "validation_size", "image_size", "window", "examples", "features"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_flag("augment", self.augment)

    @property
    def cache(self) -> Path:
        return self.cache_dir or default_cache()
