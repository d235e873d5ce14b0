"""The paper's experiments as files: one for each table and figure, read and checked.

A file holds the protocol, the published numbers and, in tables named ``mini``, what to change for two CPU cores:

    title, source, question, needs, protocol, notes    in words
    kind        "table" (the best configuration of each method), "grid" (all, with all seeds), "curves", "runtime",
                "ratios" (each method on each task over a reference), or
                "scoreboard" (each method at the learning rate its authors advise, and at the best of its grid)
    metric, select_on, seeds
    [base]      keys of a run's configuration
    [grid]      lists of values to try
    [[columns]] name, and keys and a grid of its own, such as the data set; in a scoreboard ``metric``, ``select_on``
    [[methods]] name as the paper has it, keys, a grid; ``columns`` if it is in some only; ``paper``, its row there
    [[cases]]   keys and a grid for some ``methods`` in some ``columns``
    [paper]     the published numbers by row and column; [marks] says what a sign after a row's name means
    [[claims]]  what the paper says of the results, see :class:`Claim`; a scoreboard has ``goal`` instead, the methods
                that should be as good at their defaults as the best that is tuned
    [mini]      base, grid, methods, columns, seeds, and ``differences`` in words; of a run time, ``runtime``
    [runtime]   what to time, see :class:`Runtime`

A column, a method and a case come one after the other over the base, and replace what was said before. At the mini
scale, the mini tables come over all of these, in the same order.
"""

from __future__ import annotations

from pathlib import Path

from borat.lab.files import pick, read_mapping
from borat.lab.reproduce.kinds import find_kind
from borat.lab.reproduce.spec import Spec


def experiments_folder() -> Path:
    """Return the folder of experiments in the installed package, or in the repository."""
    here = Path(__file__).resolve()
    for place in (here.parents[1] / "experiments", here.parents[4] / "experiments"):
        if place.is_dir():
            return place
    raise ValueError("the folder experiments/ is neither in the package nor in a repository around it")


def spec_names() -> list[str]:
    return sorted(path.stem for path in experiments_folder().glob("*.toml"))


def load_spec(name: str) -> Spec:
    """Read an experiment by its name, or from a file of one's own."""
    if name.endswith(".toml"):
        return read_spec(Path(name))
    return read_spec(experiments_folder() / f"{pick('experiment', name, spec_names())}.toml")


def read_spec(path: Path) -> Spec:
    """Read a file, and reject what does not belong in it."""
    values = read_mapping(path)
    try:
        return find_kind(values.pop("kind", "")).from_tables(path.stem, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
