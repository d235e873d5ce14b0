"""Illustrations: the paper's (schedules, a bundle in one dimension, a loss on which ALI-G oscillates) and FreeBORAT's.

All numbers come from the lab's schedules and from the optimizers. ``python docs/drawing/illustrations.py`` writes PNG
files to ``docs/pictures``; with the name of a folder, PNG and PDF files to this folder.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from borat import FreeBORAT
from borat.lab.baselines import make_schedule
from borat.lab.config import RunConfig
from borat.lab.explain.frames import EXAMPLES, Frame, FreeFrame, free_trajectory, trajectory
from borat.lab.figures import COLOURS, save

GREY, VERMILION, BLUE, GREEN, PURPLE, ORANGE, _ = (light for light, _ in COLOURS.values())
EPOCHS, BATCHES = 200, 10
SCHEDULES = {
    "constant": "constant",
    "manual": "piecewise constant",
    "geometric": "geometric",
    "cosine": "warm restarts",
}


def draw(folder: Path, formats: Sequence[str] = ("png", "pdf")) -> None:
    """Draw all illustrations."""
    figures = {
        "learning-rate-schedules": draw_schedules(),
        "bundle": draw_bundle(),
        "gap": draw_gap(),
        "non-convex-example": draw_non_convex_example(),
        "free-borat": draw_free(),
    }
    for name, figure in figures.items():
        for kind in formats:
            save(figure, folder / f"{name}.{kind}")


def draw_schedules() -> Figure:
    """Draw common schedules of the learning rate."""
    figure = Figure(figsize=(10, 2.6), layout="constrained")
    for axes, (schedule, title) in zip(figure.subplots(1, 4, sharey=True), SCHEDULES.items(), strict=True):
        rates = learning_rates(schedule)
        axes.plot(torch.arange(len(rates)) / BATCHES, rates, color=BLUE)
        axes.set_title(title, loc="left", fontsize=11)
        axes.set(xlabel="epoch", xlim=(0, EPOCHS), ylim=(0, 0.105))
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("learning rate")
    return figure


def learning_rates(schedule: str) -> list[float]:
    """Return the learning rate of each batch under one of the lab's schedules."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    config = RunConfig(optimizer="sgd", lr=0.1, schedule=schedule, epochs=EPOCHS)
    follow = make_schedule(optimizer, config, BATCHES)
    rates = []
    for _ in range(EPOCHS):
        for _ in range(BATCHES):
            rates.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            follow.after_batch()
        follow.after_epoch(0.0)
    return rates


def draw_bundle() -> Figure:
    """Draw two samples of a loss, their linear pieces, the bound, and the proximal model of BORAT3."""
    example, lr = EXAMPLES[0], 5.0
    pieces = trajectory(example, lr, 3, 2.0, calls=2)
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    w = torch.linspace(-1.1, 2.7, 400, dtype=torch.float64)
    for i, colour in enumerate((VERMILION, BLUE)):
        axes.plot(w, example.samples[i](w), color=colour, lw=2, label=rf"$\ell_{{z_t^{i + 1}}}$")
        _draw_piece(axes, pieces[i], w, colour, rf"its linear piece at $\hat{{w}}_t^{i + 1}$")
    axes.axhline(0, color=GREY, ls=(0, (1, 2)), lw=1.6, label="lower bound $B = 0$")
    axes.plot(w, proximal_model(pieces, lr, w), color=GREEN, lw=2.4, label="bundle and proximal term")
    first, second = pieces
    lowest = proximal_model(pieces, lr, torch.tensor(second.goal, dtype=torch.float64)).item()
    axes.plot(second.goal, lowest, "D", color=GREEN, ms=8, zorder=3)
    places = {r"$\hat{w}_t^1 = w_t$": (first.point, first.loss), "$\\hat{w}_t^2$\nALI-G": (first.goal, second.loss)}
    places |= {"$w_{t+1}$\nBORAT3": (second.goal, lowest), "$w^*$": (0.0, 0.0)}
    _mark_places(axes, places, bottom=-0.3)
    axes.set(ylabel="loss", ylim=(-0.3, 3.0), xlim=(-1.1, 2.7))
    axes.legend(frameon=False, loc="upper left", fontsize=9)
    return figure


def draw_non_convex_example() -> Figure:
    """Draw ALI-G at a large learning rate, which oscillates between two points, and BORAT3, which does not."""
    example, lr = EXAMPLES[2], 10.0
    alig, borat = (trajectory(example, lr, size, 0.6, calls=2) for size in (2, 3))
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    w = torch.linspace(-0.75, 0.75, 400, dtype=torch.float64)
    axes.plot(w, example.samples[0](w), color="black", lw=2, label=r"$f(w) = w^2 - |w|^3$")
    for i, piece in enumerate(borat):
        _draw_piece(axes, piece, w, BLUE, "" if i else "linear pieces of $f$")
    axes.plot(w, proximal_model(borat, lr, w), color=GREEN, lw=2.2, label=rf"proximal model of BORAT3, $\eta = {lr:g}$")
    arrow = {"arrowstyle": "<->", "color": PURPLE, "lw": 2}
    axes.annotate("", (alig[0].point, -0.012), (alig[0].goal, -0.012), arrowprops=arrow)
    axes.text(-0.3, -0.014, "ALI-G oscillates", color=PURPLE, ha="center", va="top")
    axes.plot(borat[-1].goal, -0.012, "D", color=GREEN, ms=8, zorder=3, clip_on=False)
    axes.text(0.03, -0.014, "BORAT3 after one update", color=GREEN, ha="left", va="top")
    axes.axhline(0, color=GREY, ls=(0, (1, 2)), lw=1.6, label="lower bound")
    axes.set(xlabel="$w$", ylabel="loss", ylim=(-0.028, 0.27), xlim=(-0.75, 0.75))
    axes.set_xticks([-0.6, -0.3, 0, 0.3, 0.6])
    axes.legend(frameon=False, loc="upper center", ncols=2, fontsize=9)
    return figure


def draw_free() -> Figure:
    """Draw the three points of FreeBORAT on noisy batches, and one of its models with the target."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_three_points(left)
    _draw_target(right)
    return figure


def draw_gap() -> Figure:
    """Draw a loss that falls like f* + C / sqrt(k), and its average so far, which is twice as far above f*."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    k = torch.arange(1, 401, dtype=torch.float64)
    floor, loss = 1.0, 1.0 + 2.0 / k.sqrt()
    average = loss.cumsum(0) / k
    axes.plot(k, average, color=BLUE, lw=1.8, label="average of the losses so far")
    axes.plot(k, loss, color="black", lw=1.8, label="loss")
    axes.axhline(floor, color=GREY, ls=(0, (1, 2)), lw=1.4, label=r"lowest loss $f^\star$, unknown")
    for at in (50, 150, 300):
        high, middle = average[at - 1].item(), loss[at - 1].item()
        for top, bottom, colour in ((high, middle, GREEN), (middle, floor, VERMILION)):
            axes.annotate("", (at, top), (at, bottom), arrowprops={"arrowstyle": "<->", "color": colour})
    axes.text(150, average[149].item() + 0.05, "progress so far, measured", color=GREEN, fontsize=9)
    axes.text(156, (loss[149].item() + floor) / 2, "remaining gap, equal", color=VERMILION, va="center", fontsize=9)
    axes.set(xlabel="batch $k$", ylabel="loss", ylim=(0.9, 2.2), xlim=(0, 400))
    axes.legend(frameon=False, loc="upper right", fontsize=9)
    return figure


def _draw_three_points(axes: Axes) -> None:
    A, b = regression()
    z, x, y = three_points(A, b, torch.tensor([-2.6, 2.0], dtype=torch.float64))
    u, v = torch.meshgrid(*(torch.linspace(-4.0, 4.0, 121, dtype=torch.float64),) * 2, indexing="xy")
    loss = (torch.stack((u, v), -1) @ A.T - b).square().mean(-1) / 2
    axes.contour(u, v, loss, levels=torch.logspace(-0.25, 1.2, 14).tolist(), colors=GREY, linewidths=0.6, alpha=0.45)
    axes.plot(*z.T, color=GREEN, lw=0.8, marker="D", ms=3.2, alpha=0.8, label="centre $z$")
    axes.plot(*y.T, "o", color=ORANGE, ms=3.6, label="point $y$ of each gradient")
    axes.plot(*x.T, color="black", lw=2.2, label="average $x$, the result")
    axes.plot(*torch.linalg.lstsq(A, b).solution, "*", color=VERMILION, ms=13, zorder=3, label="lowest loss")
    axes.set(xlabel="first weight", ylabel="second weight", xlim=(-3, 1.8), ylim=(-2, 3.9))
    axes.set_title("two weights, 60 noisy batches", loc="left", fontsize=11)
    axes.legend(frameon=False, loc="upper right", fontsize=9)


def _draw_target(axes: Axes) -> None:
    example, batch = EXAMPLES[1], 31
    pieces = free_pieces(free_trajectory(example, 3, -3.0, calls=batch))
    newest = pieces[-1]
    w = torch.linspace(-2.9, 0.7, 400, dtype=torch.float64)
    axes.plot(w, example.samples[0](w), color="black", lw=1.2, label="loss")
    for piece, colour, name in zip(pieces, (BLUE, VERMILION), ("older", "newest"), strict=True):
        _draw_piece(axes, piece, w, colour, f"{name} piece")
    axes.axhline(newest.target, color=PURPLE, ls=(0, (6, 2, 1, 2)), lw=1.6, label="target $T$")
    near = w[free_model(pieces, w) < 1.9]  # below the legend
    axes.plot(near, free_model(pieces, near), color=GREEN, lw=2.2, label="model and proximal term")
    lowest = free_model(pieces, torch.tensor(newest.goal, dtype=torch.float64)).item()
    axes.plot(newest.goal, lowest, "D", color=GREEN, ms=7, zorder=3)
    places = {
        "$y$": (newest.point, newest.loss),
        "$z$": (newest.centre, newest.loss + newest.slope * (newest.centre - newest.point)),
        "new $z$": (newest.goal, lowest),
    }
    _mark_places(axes, places, bottom=-0.2)
    axes.set(ylabel="loss", xlim=(-2.9, 0.7), ylim=(-0.2, 3.1))
    axes.set_title(f"one weight, batch {batch}", loc="left", fontsize=11)
    axes.legend(frameon=False, loc="upper right", fontsize=9)


def _draw_piece(axes: Axes, piece: Frame | FreeFrame, w: Tensor, colour: str, label: str) -> None:
    axes.plot(w, line(piece, w), color=colour, lw=1.4, ls=(0, (5, 3)), label=label)
    axes.plot(piece.point, piece.loss, "o", color=colour, ms=7, zorder=3)


def _mark_places(axes: Axes, places: Mapping[str, tuple[float, float]], bottom: float) -> None:
    """Label points on the horizontal axis, and connect them with the curves above."""
    for place, height in places.values():
        axes.plot([place, place], [bottom, height], color=GREY, lw=0.8, zorder=0)
    axes.set_xticks([place for place, _ in places.values()], list(places))
    axes.get_xticklabels()[-1].set_horizontalalignment("left")  # clear of its neighbour


def regression() -> tuple[Tensor, Tensor]:
    """Return a least-squares problem in two weights whose samples disagree: the loss stays above its bound."""
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(64, 2, generator=generator, dtype=torch.float64) @ torch.tensor([[1.0, 0.0], [0.6, 0.7]]).double()
    return A, torch.randn(64, generator=generator, dtype=torch.float64)


def three_points(A: Tensor, b: Tensor, start: Tensor, batches: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``z``, ``x`` and ``y`` of FreeBORAT before the first batch of six samples, and after each."""
    w = nn.Parameter(start.clone())
    optimizer = FreeBORAT([w])
    generator = torch.Generator().manual_seed(1)
    points = [(start, start, start)]
    for _ in range(batches):
        rows = torch.randint(len(A), (6,), generator=generator)
        optimizer.zero_grad()
        loss = (A[rows] @ w - b[rows]).square().mean() / 2
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(loss=loss)
        y = w.detach().clone()
        optimizer.eval()
        points.append((optimizer.state[w]["centre"].clone(), w.detach().clone(), y))
        optimizer.train()
    z, x, y = (torch.stack(path) for path in zip(*points, strict=True))
    return z, x, y


def line(piece: Frame | FreeFrame, w: Tensor) -> Tensor:
    """Return the values of a linear piece."""
    return piece.loss + piece.slope * (w - piece.point)


def free_pieces(frames: Sequence[FreeFrame]) -> list[FreeFrame]:
    """Return the pieces of the last frame's model, with their heights in it as losses."""
    losses = *frames[-1].older, frames[-1].loss
    return [frame._replace(loss=loss) for frame, loss in zip(frames[-len(losses) :], losses, strict=True)]


def proximal_model(pieces: Sequence[Frame], lr: float, w: Tensor) -> Tensor:
    """Return the maximum of the pieces and the bound 0, plus the proximal term around the first piece's point."""
    highest = torch.stack([line(piece, w) for piece in pieces]).amax(0).clamp(min=0.0)
    return highest + (w - pieces[0].point).square() / (2 * lr)


def free_model(pieces: Sequence[FreeFrame], w: Tensor) -> Tensor:
    """Return the maximum of the pieces and the target, plus the proximal term around the centre."""
    newest = pieces[-1]
    highest = torch.stack([line(piece, w) for piece in pieces]).amax(0).clamp(min=newest.target)
    return highest + (w - newest.centre).square() / (2 * newest.width)


if __name__ == "__main__":
    if sys.argv[1:]:
        draw(Path(sys.argv[1]))
    else:
        draw(Path(__file__).parents[1] / "pictures", ["png"])
