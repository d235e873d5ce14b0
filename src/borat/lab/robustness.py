"""Robustness of each method in three numbers: the range of settings that work."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

MARGIN = 0.02
"""Largest distance of a usable accuracy from the best of all methods, in absolute terms (2 points)."""
LOSS_MARGIN = 0.05
"""Largest distance of a usable loss from the lowest of all methods, as a fraction of it."""


@dataclass(frozen=True)
class Trial:
    """One run of a method at one point of its grid."""

    method: str
    lr: float
    radius: float | None
    """Value of the second hyperparameter of the grid, or None."""
    accuracy: float
    """Accuracy between 0 and 1; NaN for a run that diverged."""


@dataclass(frozen=True)
class Usable:
    """Settings that work for one method."""

    method: str
    tried: tuple[float, ...]
    """Learning rates of its grid, in increasing order."""
    lrs: tuple[float, ...]
    """Learning rates that are usable at their best radius."""
    decades: float
    """log10(largest / smallest) over the longest stretch of neighbouring usable learning rates."""
    cells: int
    """Number of usable (learning rate, radius) pairs."""
    total: int
    """Number of (learning rate, radius) pairs that were tried."""


def as_accuracy(loss: float) -> float:
    """Return a loss on a scale on which higher is better and ``LOSS_MARGIN`` becomes ``MARGIN``.

    >>> is_usable(as_accuracy(2.1), as_accuracy(2.0)), is_usable(as_accuracy(2.11), as_accuracy(2.0))
    (True, False)
    """
    return -MARGIN * math.log(loss) / math.log1p(LOSS_MARGIN) if loss > 0.0 or math.isnan(loss) else math.inf


def best_accuracy(accuracies: Iterable[float]) -> float:
    """Return the highest accuracy; infinity if all are NaN, so that no run is usable."""
    return max((accuracy for accuracy in accuracies if not math.isnan(accuracy)), default=math.inf)


def is_usable(accuracy: float, best: float, margin: float = MARGIN) -> bool:
    """True if an accuracy is within ``margin`` of the best one, the margin included; NaN never is.

    >>> is_usable(0.75, 0.77), is_usable(0.7499, 0.77)
    (True, False)
    """
    return accuracy >= best - margin - 1e-12  # 0.77 - 0.75 exceeds 0.02 by rounding


def usable(trials: Iterable[Trial], margin: float = MARGIN) -> list[Usable]:
    """Return the settings of each method whose accuracy is within ``margin`` of the best one.

    A cell is a (method, learning rate, radius); its accuracy is the mean over its trials (seeds), and a cell in which
    any trial diverged is not usable. The best is the highest accuracy of any cell of any method, so the trials must
    belong to one task. A learning rate is usable if its best radius is. Stretches are of neighbours in the method's own
    grid: a learning rate that was tried and failed ends a stretch, and a single usable learning rate spans 0 decades.
    Trials with a learning rate of 0 are left out: they train nothing. Methods are in the order of their first trial.

    >>> grid = {0.01: 0.90, 0.1: 0.95, 1.0: 0.94, 10.0: math.nan}
    >>> usable(Trial("SGD", lr, None, accuracy) for lr, accuracy in grid.items())[0]
    Usable(method='SGD', tried=(0.01, 0.1, 1.0, 10.0), lrs=(0.1, 1.0), decades=1.0, cells=2, total=4)
    """
    seeds: dict[str, dict[tuple[float, float | None], list[float]]] = {}
    for trial in trials:
        if trial.lr > 0.0:
            seeds.setdefault(trial.method, {}).setdefault((trial.lr, trial.radius), []).append(trial.accuracy)
    cells = {
        method: {place: sum(values) / len(values) for place, values in places.items()}
        for method, places in seeds.items()
    }
    best = best_accuracy(accuracy for places in cells.values() for accuracy in places.values())
    results = []
    for method, places in cells.items():
        good = [place for place, accuracy in places.items() if is_usable(accuracy, best, margin)]
        tried, lrs = (tuple(sorted({lr for lr, _ in some})) for some in (places, good))
        stretches = (list(stretch) for works, stretch in groupby(tried, lrs.__contains__) if works)
        decades = max((math.log10(stretch[-1] / stretch[0]) for stretch in stretches), default=0.0)
        results.append(Usable(method, tried, lrs, decades, len(good), len(places)))
    return results


def describe_ranges(results: Sequence[Usable]) -> str:
    """Return a summary of the methods that were tried at several learning rates, widest range first.

    >>> describe_ranges([Usable("SGD", (0.1, 1.0), (), 0.0, 0, 2), Usable("ALI-G", (0.1, 1.0), (0.1, 1.0), 1.0, 2, 2)])
    'Decades of usable learning rates: 1 for ALI-G, none for SGD.'
    """
    tried = [result for result in results if len(result.tried) > 1]
    if not tried:
        return ""
    methods: dict[str, list[str]] = {}
    for result in sorted(tried, key=lambda result: (-result.decades, not result.lrs)):
        methods.setdefault(f"{result.decades:.2g}" if result.lrs else "none", []).append(result.method)
    listed = {decades: " and ".join(filter(None, (", ".join(n[:-1]), n[-1]))) for decades, n in methods.items()}
    return f"Decades of usable learning rates: {', '.join(f'{d} for {names}' for d, names in listed.items())}."
