"""Reports: a folder of runs as one page, as figures for a paper, as CSV and LaTeX.

They only read the store, so they can be written while a sweep is running.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from borat.lab.files import write_text
from borat.lab.report.export import write_csv, write_latex
from borat.lab.report.page import render
from borat.lab.report.tasks import group
from borat.lab.store.records import collect
from borat.lab.store.run import STATUSES

__all__ = ["Summary", "write_report"]


@dataclass(frozen=True)
class Summary:
    """Summary of a report."""

    counts: dict[str, int]
    """Number of runs with each status."""
    notes: tuple[str, ...]
    """Files that could not be read, and why."""
    figures: tuple[Path, ...] = ()

    def __str__(self) -> str:
        parts = ", ".join(f"{count} {status}" for status, count in self.counts.items() if count)
        return _count(sum(self.counts.values()), "run") + (f" ({parts})" if parts else "")


def write_report(
    folder: Path,
    output: Path,
    *,
    title: str | None = None,
    static: Path | None = None,
    csv: Path | None = None,
    latex: Path | None = None,
) -> Summary:
    """Write a page for all runs below a folder, and other files on request. Each file is written atomically.

    Args:
        folder: folder of the runs, at any depth.
        output: HTML file to write.
        title: title of the page; by default, that of the reproduced experiment, or the folder's name.
        static: folder for the figures as PNG and PDF.
        csv: file for the table of runs.
        latex: file for the tables of experiments, and for the means over seeds of each setting.

    Raises:
        ValueError: if the folder does not exist, or if it holds neither a run nor the tables of an experiment.
    """
    found = collect(folder)
    if found.runs.empty and not found.experiments:
        reasons = "".join(f"; {note}" for note in found.notes)
        raise ValueError(f"no runs in {folder}: train some with `borat train` or `borat sweep`{reasons}")
    for name, path in (("output", output), ("csv", csv), ("latex", latex)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise ValueError(f"{name} must be a file in a folder that exists, got {path}")
    if static is not None and static.is_file():
        raise ValueError(f"static must be a folder, got the file {static}")
    titles, tasks = {experiment.title for experiment in found.experiments}, group(found)
    title = title or (titles.pop() if len(titles) == 1 else f"Runs in {folder.resolve().name}")
    summary = Summary({s: int((found.runs.status == s).sum()) for s in STATUSES}, tuple(found.notes))
    about = f"{summary} on {', '.join(sorted(set(found.runs.data)))}; {_count(len(tasks), 'task')}."
    about = "No training runs, only measured tables." if found.runs.empty else about
    write_text(output, render(title, about, found, tasks))
    if csv is not None:
        write_csv(found.runs, csv)
    if latex is not None:
        write_latex(tasks, found.experiments, latex)
    if static is None:
        return summary
    from borat.lab.report.static import write_figures  # imports Matplotlib, which the page does not need

    return Summary(summary.counts, summary.notes, tuple(write_figures(tasks, static)))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
