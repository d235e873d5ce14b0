"""Reports: a folder of runs as one page that opens by a double click, as figures for a paper, as CSV and LaTeX.

They read the store and nothing else, so that they can be made while a sweep is running.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from borat.lab.files import write_text
from borat.lab.report.export import write_csv, write_latex
from borat.lab.report.page import render
from borat.lab.report.tasks import TaskReport, group
from borat.lab.store.records import Collection, collect
from borat.lab.store.run import STATUSES

__all__ = ["Summary", "write_report"]


@dataclass(frozen=True)
class Summary:
    """Summary of the runs in a report."""

    output: Path
    counts: dict[str, int]
    """Number of runs with each status."""
    data: tuple[str, ...]
    tasks: int
    notes: tuple[str, ...]
    """Files that could not be read, and why."""
    figures: tuple[Path, ...] = ()

    @property
    def runs(self) -> int:
        return sum(self.counts.values())


def write_report(
    folder: Path,
    output: Path,
    *,
    title: str | None = None,
    static: Path | None = None,
    csv: Path | None = None,
    latex: Path | None = None,
) -> Summary:
    """Write the page for all runs below a folder, and further forms of it where asked. Each file is written atomically.

    Args:
        folder: where the runs are, at any depth.
        output: the HTML file to write.
        title: of the page; without one, that of the reproduced experiment or the folder's name.
        static: a folder for the figures as PNG and PDF.
        csv: a file for the table of runs.
        latex: a file for the table of settings, means over seeds, and for ours beside the paper's.

    Raises:
        ValueError: if the folder does not exist, or if it holds neither a run nor the table of an experiment.
    """
    found = collect(folder)
    if found.runs.empty and not found.experiments:
        reasons = "".join(f"; {note}" for note in found.notes)
        raise ValueError(f"no runs in {folder}: train some with `borat train` or `borat sweep`{reasons}")
    for name, path in (("output", output), ("csv", csv), ("latex", latex)):
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"{name} must be in a folder that exists, got {path}")
        if path is not None and path.is_dir():
            raise ValueError(f"{name} must be a file, got the folder {path}")
    if static is not None and static.is_file():
        raise ValueError(f"static must be a folder, got the file {static}")
    tasks = group(found)
    counts = {status: int((found.runs.status == status).sum()) for status in STATUSES}
    data = tuple(sorted(set(found.runs.data)))
    page = render(title or _title(folder, found), _describe(counts, data, tasks), found, tasks)
    write_text(output, page)
    if csv is not None:
        write_csv(found.runs, csv)
    if latex is not None:
        write_latex(tasks, found.experiments, latex)
    figures = []
    if static is not None:
        from borat.lab.report.static import write_figures  # with Matplotlib, which the page does not need

        figures = write_figures(tasks, static)
    return Summary(output, counts, data, len(tasks), tuple(found.notes), tuple(figures))


def _title(folder: Path, found: Collection) -> str:
    titles = {experiment.title for experiment in found.experiments}
    return titles.pop() if len(titles) == 1 else f"Runs in {folder.resolve().name}"


def _describe(counts: dict[str, int], data: Sequence[str], tasks: Sequence[TaskReport]) -> str:
    total = sum(counts.values())
    if not total:
        return "No training runs, only measured tables."
    parts = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return f"{_count(total, 'run')} ({parts}) on {', '.join(data)}; {_count(len(tasks), 'task')}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
