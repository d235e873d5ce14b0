"""Figures of the theorems: the measured objective over the number of updates, and the bound that was proved.

``python docs/drawing/theory_figures.py`` writes ``docs/theory-rates.png`` and ``docs/theory-lemmas.png``. With the name
of a folder that holds the data sets mushrooms and w8a, it also writes ``docs/theory-real.png``.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import theory_bounds as bounds
import theory_problems as problems
from borat.lab.figures import kind_styles, save
from illustrations import BLUE, GREEN, GREY, ORANGE, VERMILION

STYLES = {2: ("ALI-G", VERMILION, (0, (5, 2))), 3: ("BORAT3", BLUE, "solid"), 5: ("BORAT5", GREEN, (0, (1, 1)))}
"""Name, colour and dashes for each bundle size."""


@dataclass(frozen=True)
class Panel:
    """One theorem on one problem."""

    title: str
    problem: problems.Problem
    lr: float
    bound: bounds.Bound
    linear: bool = False
    """The theorem gives a linear rate, of the last point instead of the average."""
    printed: bounds.Bound | None = None
    """The bound as the paper prints it, if it differs."""
    updates: int = 200
    runs: int = 3
    """Number of random sequences of batches; measurements are averaged over them."""
    sizes: Sequence[int] = (2, 3, 5)

    def measure(self, size: int) -> Tensor:
        """Return the mean gap of the runs after 1, 2, ... updates."""
        orders = [self.problem.draw(self.updates, seed) for seed in range(self.runs)]
        traces = [bounds.run(self.problem, size, self.lr, order) for order in orders]
        gap = bounds.gap_of_the_last if self.linear else bounds.gap_of_the_average
        return torch.stack([gap(self.problem, trace) for trace in traces]).mean(0)


def synthetic_panels() -> list[Panel]:
    """Return each theorem on a problem that was made for it."""
    rough, smooth = problems.largest_coordinate(), problems.least_squares()
    strong, secant = problems.ellipsoids(), problems.waves()
    border, strong_border = 1 / (2 * smooth.smoothness), 1 / (2 * strong.smoothness)
    return [
        Panel("convex, Lipschitz: η = 1000", rough, 1e3, bounds.lipschitz_bound, runs=1),
        Panel("convex, smooth: η = 10 / 2β", smooth, 10 * border, bounds.smooth_bound),
        Panel("convex, smooth: η = 0.05 / 2β", smooth, 0.05 * border, bounds.smooth_bound, printed=_printed_smooth),
        Panel("strongly convex: η = 10 / 2β", strong, 10 * strong_border, bounds.strongly_convex_bound, True),
        Panel("strongly convex: η = 0.2 / 2β", strong, 0.2 * strong_border, bounds.strongly_convex_bound, True),
        Panel(
            "RSI, not convex: η = η̂",
            *(secant, bounds.largest_secant_lr(secant), bounds.secant_bound, True, _printed_secant),
            sizes=(3,),
        ),
    ]


def real_panels(data_dir: Path) -> list[Panel]:
    """Return the convex theorems on real data, made separable."""
    panels = []
    for name, limit in (("mushrooms", None), ("w8a", 9000)):
        hinge, logistic = (problems.separable(name, loss, data_dir, limit=limit) for loss in ("hinge", "logistic"))
        panels.append(Panel(f"{name}, hinge: η = 100", hinge, 100.0, bounds.lipschitz_bound, updates=400, runs=2))
        for share in (2, 0.5):
            title, lr = f"{name}, logistic: η = {share} / 2β", share / (2 * logistic.smoothness)
            panels.append(Panel(title, logistic, lr, bounds.smooth_bound, updates=400, runs=2))
    return panels


def draw(folder: Path, data_dir: Path | None = None) -> None:
    """Draw the theorems, the lemmas and, with a folder of data, the theorems on real data."""
    pictures = {"theory-rates": synthetic_panels()}
    if data_dir is not None:
        pictures["theory-real"] = real_panels(data_dir)
    for name, panels in pictures.items():
        figure = Figure(figsize=(10, 6), layout="constrained")
        for axes, panel in zip(figure.subplots(2, 3).flat, panels, strict=True):
            _draw_panel(axes, panel)
        _add_legend(figure)
        save(figure, folder / f"{name}.png")
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    for axes, draw_lemma in zip(figure.subplots(1, 3), (_draw_progress, _draw_dual_values, _draw_kinds), strict=True):
        draw_lemma(axes)
    save(figure, folder / "theory-lemmas.png")


def _printed_smooth(problem: problems.Problem, lr: float, updates: int) -> Tensor:
    return bounds.smooth_bound(problem, 1 / (2 * problem.smoothness), updates)


def _printed_secant(problem: problems.Problem, lr: float, updates: int) -> Tensor:
    return bounds.secant_bound(problem, lr, updates) * 2 / problem.smoothness


def _draw_panel(axes: Axes, panel: Panel) -> None:
    count = torch.arange(1, panel.updates + 1)
    bound = panel.bound(panel.problem, panel.lr, panel.updates)
    axes.plot(count, bound, color="black", lw=2, label="bound")
    if panel.printed:
        axes.plot(count, panel.printed(panel.problem, panel.lr, panel.updates), color=GREY, ls=":", label="as printed")
    for size in panel.sizes:
        name, colour, dashes = STYLES[size]
        axes.plot(count, panel.measure(size), color=colour, ls=dashes, label=name)
    axes.set(yscale="log", xscale="linear" if panel.linear else "log", xlabel="updates $T + 1$", ylabel="$f - f^*$")
    _limit_to_decades(axes, lowest=float(bound.min()) * 1e-5)
    _decorate(axes, panel.title)


def _limit_to_decades(axes: Axes, lowest: float) -> None:
    """Limit the axis to whole powers of ten, not below ``lowest``, so that it has several labels."""
    values = torch.cat([torch.as_tensor(line.get_ydata()) for line in axes.lines])
    low, high = max(float(values[values > 0].min()), lowest), float(values.max())
    axes.set_ylim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))


def _decorate(axes: Axes, title: str, **legend: Any) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(alpha=0.3)
    if legend:
        axes.legend(frameon=False, fontsize=8, **legend)


def _add_legend(figure: Figure) -> None:
    entries = {
        label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=len(entries), frameon=False)


def _draw_progress(axes: Axes) -> None:
    """Draw the decrease of the squared distance to the solution in each step, over the bound from its dual value."""
    problem, lr = problems.least_squares(), 0.5
    for size, (name, colour, _) in STYLES.items():
        trace = bounds.run(problem, size, lr, problem.draw(60, 0))
        distances = (trace.points - problem.solution).square().sum(1)
        guaranteed = [2 * lr * step.dual_value for step in trace.steps]
        axes.scatter(guaranteed, distances[:-1] - distances[1:], s=12, color=colour, alpha=0.7, label=name)
    axes.axline((1, 1), (10, 10), color="black", lw=1.5, label="equality")
    axes.set(xscale="log", yscale="log", xlabel=r"$2 \eta \, \max D$", ylabel="decrease of $\\|w - w^*\\|^2$")
    _decorate(axes, "progress of each step", loc="upper left")


def _draw_dual_values(axes: Axes) -> None:
    sizes = range(2, 13)
    shown = {
        "least squares": (problems.least_squares(), GREY, "o"),
        "half-spaces": (problems.half_spaces(), ORANGE, "s"),
        "waves (not convex)": (problems.waves(), BLUE, "^"),
    }
    for name, (problem, colour, marker) in shown.items():
        whole = problem.whole()
        values = [bounds.run(whole, size, 10.0, [0]).steps[0].dual_value for size in sizes]
        axes.plot(sizes, [v / values[-1] for v in values], color=colour, marker=marker, ms=4, label=name)
    axes.set(xlabel="bundle size N", ylabel="max D, relative to N = 12", xticks=list(sizes)[::2], ylim=(0, 1.05))
    _decorate(axes, "more pieces, higher dual value", loc="lower right")


def _draw_kinds(axes: Axes) -> None:
    """Draw the share of each subproblem of N = 3, over the learning rate."""
    problem = problems.waves(dimension=3)
    shares = [2.0**k for k in range(-3, 6)]
    generator = torch.Generator().manual_seed(0)
    starts = problem.solution + 4 * torch.randn(16, 3, generator=generator, dtype=torch.float64)
    bottom = [0.0] * len(shares)
    counts = []
    for share in shares:
        lr = share / (2 * problem.smoothness)
        traces = [bounds.run(replace(problem, start=w), 3, lr, problem.draw(4, 0)) for w in starts]
        counts.append(Counter(step.kind for trace in traces for step in trace.steps))
    for kind, style in kind_styles(()).items():
        heights = [100 * count[kind] / count.total() for count in counts]
        if not any(heights):
            continue
        axes.bar(range(len(shares)), heights, bottom=bottom, color=style.light, label=kind, width=0.85)
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    axes.axvline(shares.index(1.0) + 0.5, color="black", lw=1.5)
    axes.set(xlabel="η in units of 1 / 2β", ylabel="steps (%)", ylim=(0, 100))
    axes.set_xticks(range(len(shares)), [f"{s:g}" if s >= 1 else f"1/{1 / s:g}" for s in shares], fontsize=8)
    _decorate(axes, "three kinds left of the line (waves)", loc="upper left", bbox_to_anchor=(1, 1))


if __name__ == "__main__":
    torch.set_num_threads(1)  # faster for a few numbers at a time
    draw(Path(__file__).parents[1], *map(Path, sys.argv[1:]))
