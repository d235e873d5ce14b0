"""The figures of a report for a paper: PNG and PDF, drawn by Matplotlib."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from borat.lab.figures import DASHES, MARKERS, SCALE, Style, kind_styles, method_styles, save
from borat.lab.metrics import Mean, lower_is_better, unit, value_text
from borat.lab.report.tasks import Setting, TaskGroup, short_names

SHAPES = dict(zip(MARKERS, "os^Dvp*h", strict=True))
LINES = dict(zip(DASHES, ("-", "--", ":", "-."), strict=True))
"""Matplotlib's markers and dashes by Plotly's names."""
LOOK: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,  # TrueType, which journals accept
    "hatch.linewidth": 0.6,
}
BLUES = LinearSegmentedColormap.from_list("borat", SCALE["light"])
PANELS_IN_ROW = 4
LEGEND_COLUMNS = 2
AXIS_TITLES = {"train_loss": "training loss", "step_size": "effective step size"}
"""Measurements over the epochs that need a logarithmic axis."""
FORMATS = ("png", "pdf")


def write_figures(tasks: Sequence[TaskGroup], folder: Path) -> list[Path]:
    """Write every figure that the tasks have data for, as ``<figure>_<task>.png`` and ``.pdf``."""
    written = []
    with mpl.rc_context(LOOK):
        for task, name in zip(tasks, file_names(tasks), strict=True):
            for figure_name, figure in draw_all(task):
                written += [save(figure, folder / f"{figure_name}_{name}.{kind}", dpi=200) for kind in FORMATS]
    return written


def file_names(tasks: Sequence[TaskGroup]) -> list[str]:
    """Return a short name for each task: data, model and loss, then the parts that distinguish it from the others."""
    names: list[str] = []
    for task, apart in zip(tasks, short_names(tasks), strict=True):
        parts = [*task.parts[:3], *(part for part in task.parts[3:] if len(tasks) > 1 and part in apart.split(", "))]
        name = re.sub(r"[^a-z0-9.]+", "-", " ".join(parts).lower()).strip("-.")[:80]
        names.append(name if name not in names else f"{name}-{len(names) + 1}")
    return names


def draw_all(task: TaskGroup) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of a task and their names."""
    styles = method_styles(task.methods)
    if task.grid.form == "heatmaps":
        yield "heatmaps", draw_heatmaps(task)
    elif task.grid.cells:
        yield task.measure, (draw_lines if task.grid.form == "lines" else draw_dots)(task, styles)
    best = [setting for setting in task.best.values() if setting.curve("train_loss")]
    if best:
        yield "curves", draw_curves(best, styles, "train_loss", f"validation_{task.measure}")
    if with_steps := [setting for setting in best if any(setting.curve("step_size"))]:
        yield "step_sizes", draw_curves(with_steps, styles, "step_size")
    if with_kinds := [setting for setting in best if setting.kinds]:
        yield "kinds", draw_kinds(with_kinds)


def _panels(count: int, edge: tuple[float, float], size: tuple[float, float], sharex: bool) -> tuple[Figure, Any]:
    """Return a figure with ``count`` panels of a size in rows, and a margin for titles, in inches."""
    columns = min(PANELS_IN_ROW, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(edge[0] + columns * size[0], edge[1] + rows * size[1]), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=True).ravel()
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels


# Results over the learning rate


def draw_heatmaps(task: TaskGroup) -> Figure:
    """Draw a panel for each method, all on the same scale."""
    grid = task.grid
    size = (0.5 + 0.5 * len(grid.lrs), 0.9 + 0.36 * len(grid.second_values))
    figure, panels = _panels(len(grid.cells), (0.6, 0.0), size, sharex=True)
    values = [s.result.mean for cells in grid.cells.values() for s in cells.values() if s.result and not s.lost]
    norm = Normalize(min(values, default=0.0), max(values, default=1.0) + 1e-9)
    colours = BLUES.reversed() if lower_is_better(task.metric) else BLUES
    for axes, method in zip(panels, grid.cells, strict=False):
        _draw_heatmap(axes, method, task, norm, colours)
    figure.supxlabel("learning rate", size=9)
    figure.supylabel(str(grid.second).replace("_", " "), size=9)
    scale = figure.colorbar(mpl.cm.ScalarMappable(norm, colours), ax=list(panels), fraction=0.03, pad=0.01)
    scale.ax.yaxis.set_major_formatter(lambda value, _: f"{unit(task.metric) * value:.3g}")
    scale.set_label(_axis_title(task.metric))
    return figure


def _draw_heatmap(axes: Any, method: str, task: TaskGroup, norm: Normalize, colours: Colormap) -> None:
    grid = task.grid
    axes.set_title(method, size=9, weight="bold")
    axes.set(xlim=(-0.5, len(grid.lrs) - 0.5), ylim=(-0.5, len(grid.second_values) - 0.5))
    axes.set_xticks(range(len(grid.lrs)), [f"{lr:g}" for lr in grid.lrs])
    axes.set_yticks(
        range(len(grid.second_values)), ["none" if value is None else f"{value:g}" for value in grid.second_values]
    )
    axes.tick_params(length=0)
    for (lr, second), setting in grid.cells[method].items():
        x, y = grid.lrs.index(lr), grid.second_values.index(second)
        corner, middle = (x - 0.48, y - 0.48), {"ha": "center", "va": "center"}
        if setting.lost:
            axes.add_patch(Rectangle(corner, 0.96, 0.96, facecolor="white", edgecolor="#a33c00", hatch="////", lw=0.6))
            axes.text(x, y, "×", size=12, weight="bold", **middle)  # noqa: RUF001
        elif setting.result:
            face = colours(float(norm(setting.result.mean)))
            axes.add_patch(Rectangle(corner, 0.96, 0.96, facecolor=face, lw=0))
            colour = "white" if _luminance(face) < 0.18 else "black"
            mean, std = setting.result.mean, setting.result.std
            text = value_text(task.metric, mean) + ("" if std is None else f"\n± {value_text(task.metric, std)}")
            axes.text(x, y, text, size=7, color=colour, **middle)


def _luminance(colour: Sequence[float]) -> float:
    """Return the relative luminance: at 0.18, black and white text are equally easy to read."""
    linear = [((channel + 0.055) / 1.055) ** 2.4 for channel in colour[:3]]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


def _axis_title(metric: str) -> str:
    return f"{metric} (%)" if unit(metric) == 100.0 else metric


def draw_lines(task: TaskGroup, styles: dict[str, Style]) -> Figure:
    """Draw the result over the learning rate; crosses at the worse end mark runs that diverged or failed."""
    lower = lower_is_better(task.metric)
    edge = max((s.outcome for s in task.settings if not math.isnan(s.outcome)), default=0.0) if lower else 0.0
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes: Any = figure.subplots()
    for method, cells in task.grid.cells.items():
        style = styles[method]
        finished = sorted((lr, s) for (lr, _), s in cells.items() if s.result and not s.lost)
        lost = [lr for (lr, _), setting in cells.items() if setting.lost]
        means, errors = _in_units(task.metric, (setting.result for _, setting in finished))
        axes.errorbar([lr for lr, _ in finished], means, errors, label=method, ms=5, **line_style(style))
        axes.plot(lost, [1.05 * edge] * len(lost), "x", color=style.light, ms=7, mew=2, clip_on=False)
    axes.set(xscale="log", xlabel="learning rate", ylabel=_axis_title(task.metric))
    axes.set_ylim(bottom=None if lower else 0.0)
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)
    return figure


def draw_dots(task: TaskGroup, styles: dict[str, Style]) -> Figure:
    """Draw a row for each method: its best setting filled, the others open, and crosses for lost ones."""
    cells = task.grid.cells
    figure = Figure(figsize=(5, 0.9 + 0.24 * len(cells)), layout="constrained")
    axes: Any = figure.subplots()
    outcomes = [s.outcome for of in cells.values() for s in of.values() if not math.isnan(s.outcome)] or [0.0]
    edge = 1.05 * max(outcomes) if lower_is_better(task.metric) else 100 * min(outcomes) - 1.0
    for row, (method, settings) in enumerate(cells.items()):
        colour, marker = styles[method].light, SHAPES[styles[method].marker]
        for setting in settings.values():
            if setting.lost:
                axes.plot([edge], [row], "x", color=colour, ms=6, mew=1.5)
            elif setting.result:
                fill = colour if setting is task.best[method] else "none"
                means, errors = _in_units(task.metric, [setting.result])
                axes.errorbar(means, [row], xerr=errors, color=colour, marker=marker, mfc=fill, ms=5)
    axes.set_yticks(range(len(cells)), list(cells))
    axes.invert_yaxis()
    axes.set_xlabel(_axis_title(task.metric))
    axes.grid(alpha=0.3)
    return figure


def _in_units(metric: str, values: Iterable[Mean | None]) -> tuple[list[float], list[float]]:
    known, factor = [value for value in values if value], unit(metric)
    return [factor * value.mean for value in known], [factor * (value.std or 0.0) for value in known]


def line_style(style: Style) -> dict[str, Any]:
    return {"color": style.light, "marker": SHAPES[style.marker], "ls": LINES[style.dash]}


# Curves over the epochs


def draw_curves(settings: Sequence[Setting], styles: dict[str, Style], *keys: str) -> Figure:
    """Draw measurements of the best setting of each method, a panel for each measurement."""
    height = 2.5 + 0.17 * math.ceil(len(settings) / LEGEND_COLUMNS)
    figure = Figure(figsize=(2.2 + 2.4 * len(keys), height), layout="constrained")
    panels: Any = figure.subplots(1, len(keys), squeeze=False)[0]
    for axes, key in zip(panels, keys, strict=True):
        for setting in settings:
            style = styles[setting.method]
            known = [(epoch, mean) for epoch, mean in enumerate(setting.curve(key), 1) if mean is not None]
            epochs, every = [epoch for epoch, _ in known], max(1, len(known) // 10)
            means, spreads = _in_units(key, (mean for _, mean in known))
            axes.plot(
                epochs, means, label=f"{setting.method}, {setting.label}", ms=4, markevery=every, **line_style(style)
            )
            if any(spreads):
                low, high = np.subtract(means, spreads), np.add(means, spreads)
                axes.fill_between(epochs, low, high, color=style.light, alpha=0.18, lw=0)
            if setting.lost and known:
                axes.plot(epochs[-1:], means[-1:], "x", color=style.light, ms=9, mew=2)
        axes.set(xlabel="epoch", ylabel=AXIS_TITLES.get(key) or _axis_title(key.replace("_", " ")))
        axes.grid(alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if key in AXIS_TITLES:
            make_logarithmic(axes)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=LEGEND_COLUMNS, frameon=False, fontsize=8)
    return figure


def make_logarithmic(axes: Any) -> None:
    """Make the y-axis logarithmic, labelled with powers of ten, with 2 and 5 times them if few, or with even steps."""
    axes.set_yscale("log")
    values = [y for line in axes.lines for y in line.get_ydata() if y > 0]
    if values and max(values) < 1.01 * min(values):  # a constant needs a range
        axes.set_ylim(min(values) / 10, max(values) * 10)
    low, high = axes.get_ylim()
    decades = math.log10(high / low)
    if decades < 2.2:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if decades > 0.7 else MaxNLocator(5))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_kinds(settings: Sequence[Setting]) -> Figure:
    """Draw the shares of the kinds of steps over the epochs, a panel for each method."""
    figure, panels = _panels(len(settings), (0.5, 0.7), (2.0, 1.9), sharex=False)
    styles = kind_styles(kind for setting in settings for count in setting.kinds for kind in count)
    shown = {}
    for axes, setting in zip(panels, settings, strict=False):
        counts = setting.kinds
        edges = [epoch + 0.5 for epoch in range(len(counts) + 1)]
        top = np.zeros(len(counts))
        for kind in (kind for kind in styles if any(count[kind] for count in counts)):
            base, top = top, top + [100 * count[kind] / max(count.total(), 1) for count in counts]
            look = {"facecolor": styles[kind].light, "edgecolor": "white", "hatch": 2 * styles[kind].hatch, "lw": 0}
            shown[kind] = axes.stairs(top, edges, baseline=base, fill=True, **look)
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 100), xlabel="epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_title(f"{setting.method}, {setting.label}", size=8)
    panels[0].set_ylabel("share of updates (%)")
    ordered = [kind for kind in styles if kind in shown]
    handles = [shown[kind] for kind in ordered]
    figure.legend(handles, ordered, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure
