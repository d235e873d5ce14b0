"""The files of the experiments, one for each table and figure of the paper.

A file holds the protocol, the published numbers and, in tables named ``mini``, the changes for two CPU cores:

    title, source, question, needs, protocol, notes    in words
    kind        "table" (the best configuration of each method), "grid" (all, with all seeds), "curves" (a table, and
                a metric over the epochs and over time), "runtime", "ratios" (each method on each task relative to a
                reference), or "scoreboard" (each method at its default learning rate, and at the best of its grid)
    metric, select_on, seeds
    [base]      keys of a run's configuration
    [grid]      lists of values to try
    [[columns]] name, and its own keys and grid, such as the data set; in a scoreboard ``metric``, ``select_on``.
                A ``task`` of a Python file (``mytask.py:Class``) is looked for beside the experiment
    [[methods]] name as in the paper, keys, a grid; ``columns`` if it is only in some; ``paper``, its row there
    [[cases]]   keys and a grid for some ``methods`` in some ``columns``
    [paper]     the published numbers by row and column; [marks] explains signs after the names of rows
    [[claims]]  sentences of the paper about its results, see :class:`Claim`
    goal        in a scoreboard, the methods that should match the best tuned method at their defaults
    reference   in ratios, the method that all others are compared with
    [mini]      base, grid, methods, columns, seeds, and ``differences`` in words; of a run time, ``runtime``
    [runtime]   the model and the batch to time, see :class:`Runtime`

The more specific table wins: a column over the base, a method over the column, a case over both. At the mini scale, the
mini tables come after all of these, in the same order.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from borat.lab.files import pick, read_mapping
from borat.lab.reproduce import kinds
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
    """Read an experiment by its name, or from a TOML file."""
    if name.endswith(".toml"):
        return read_spec(Path(name))
    return read_spec(experiments_folder() / f"{pick('experiment', name, spec_names())}.toml")


def read_spec(path: Path) -> Spec:
    """Read and check a TOML file."""
    values = read_mapping(path)
    for table in (values.get("base", {}), *values.get("columns", ())):
        if ".py:" in table.get("task", ""):
            table["task"] = str(path.parent / table["task"])
    known = [module.name for module in iter_modules(kinds.__path__)]
    try:
        kind = pick("kind", values.pop("kind", ""), known)
        spec: Spec = import_module(f"{kinds.__name__}.{kind}").KIND(**values, name=path.stem)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return spec
