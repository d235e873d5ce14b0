"""``borat explain``: frames, page and command."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from borat import ALIG, BORAT, FreeBORAT
from borat.lab.cli import app
from borat.lab.explain import page
from borat.lab.explain.frames import EXAMPLES, FREE_CALLS, SIZES, free_trajectory, trajectory
from illustrations import free_model, free_pieces, line, proximal_model


@pytest.fixture(scope="module")
def rendered():
    return page.render()


@pytest.fixture(scope="module")
def data(rendered):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', rendered)[1])


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["explain", *arguments], env={"COLUMNS": "200", "TERM": "dumb"})


def one_step(optimizer_of, example, sample, start):
    w = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = optimizer_of([w])
    loss = example.samples[sample](w)
    loss.backward()
    optimizer.step(loss=loss) if isinstance(optimizer, BORAT) else optimizer.step()
    return w.item()


# The frames


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
@pytest.mark.parametrize("size", SIZES)
def test_frames_minimise_the_proximal_model(example, size):
    """The goal is the lowest point of the curve that the page draws."""
    grid = torch.linspace(-40, 40, 400_001, dtype=torch.float64)
    lr, start = example.rates[-2], example.starts[0]
    frames = trajectory(example, lr, size, start)
    for call, frame in enumerate(frames):
        pieces = frames[call - call % (size - 1) : call + 1]
        assert len(frame.alpha) == len(pieces) + 1
        assert sum(frame.alpha) == pytest.approx(1.0)
        values = proximal_model(pieces, lr, grid)
        lowest = proximal_model(pieces, lr, torch.tensor(frame.goal, dtype=torch.float64))
        assert lowest <= values.min() + 1e-12


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_frames_follow_the_bundle(example):
    """Each batch is measured where the one before left the weight, and the update is the step of the weights."""
    lr, start = example.rates[3], example.starts[-1]
    for size in SIZES:
        frames = trajectory(example, lr, size, start)
        assert frames[0].point == start
        assert all(after.point == before.goal for before, after in pairwise(frames))
        assert [bool(frame.kind) for frame in frames] == [(call + 1) % (size - 1) == 0 for call in range(len(frames))]
        first = frames[: size - 1]
        step = sum(a * piece.slope for a, piece in zip(first[-1].alpha, first, strict=False))
        assert first[-1].goal == pytest.approx(start - lr * step, abs=1e-12)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_the_other_methods_match_the_library(example):
    """The page takes ALI-G's step from the first frame of a bundle, and SGD's as the slope times the rate."""
    for lr, start in ((example.rates[1], example.starts[0]), (example.rates[-1], example.starts[-1])):
        for frame in trajectory(example, lr, 2, start, calls=3):
            alig = one_step(lambda w, lr=lr: ALIG(w, lr, momentum=0.0), example, frame.sample, frame.point)
            sgd = one_step(lambda w, lr=lr: torch.optim.SGD(w, lr), example, frame.sample, frame.point)
            assert frame.goal == pytest.approx(alig, abs=1e-12)
            assert frame.point - lr * frame.slope == pytest.approx(sgd, abs=1e-12)


def test_the_papers_example_oscillates_with_two_pieces_only():
    cubic = EXAMPLES[2]
    assert [f.goal for f in trajectory(cubic, 12.0, 2, 0.6)] == pytest.approx([-0.6, 0.6] * 4, abs=1e-5)
    assert abs(trajectory(cubic, 9.0, 2, 0.6)[-1].goal) < 0.01
    assert trajectory(cubic, 12.0, 3, 0.6)[1].goal == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
@pytest.mark.parametrize("size", SIZES)
def test_free_frames_minimise_the_model_with_the_target(example, size):
    grid = torch.linspace(-10, 10, 100_001, dtype=torch.float64)
    frames = free_trajectory(example, size, example.starts[0])
    assert len(frames) == FREE_CALLS
    for call, frame in enumerate(frames):
        pieces = free_pieces(frames[: call + 1])
        assert len(frame.alpha) == len(pieces) + 1 == min(call + 2, size)
        assert sum(frame.alpha) == pytest.approx(1.0)
        if not frame.width:
            assert frame.goal == frame.centre
            continue
        values = free_model(pieces, grid)
        lowest = free_model(pieces, torch.tensor(frame.goal, dtype=torch.float64))
        assert lowest <= values.min() + 1e-10


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_free_frames_are_the_three_points(example):
    """z, x and y of each batch equal those of an optimizer that moves to x after it."""
    start = example.starts[-1]
    w = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = FreeBORAT([w], 3)
    centre, frames = start, free_trajectory(example, 3, start)
    for call, frame in enumerate(frames):
        assert (frame.sample, frame.point, frame.centre) == (call % len(example.samples), w.item(), centre)
        optimizer.zero_grad()
        loss = example.samples[frame.sample](w)
        loss.backward()
        optimizer.step(loss=loss)
        step, pieces = optimizer.last_step, free_pieces(frames[: call + 1])
        heights = [line(piece, centre) - frame.target for piece in pieces]
        assert heights == pytest.approx([value - step.target for value in step.offsets[:-1]], abs=1e-9)
        centre = optimizer.state[w]["centre"].item()
        assert (frame.loss, frame.slope, frame.alpha) == (loss.item(), w.grad.item(), step.alpha)
        assert (frame.goal, frame.next_point) == (centre, w.item())
        optimizer.eval()
        assert frame.average == pytest.approx(w.item(), abs=1e-12)
        optimizer.train()


def test_samples_at_odds_draw_the_average_between_them():
    """The samples have different minima; the result is near the minimiser of their sum, which is 0.

    A bundle of two has one sample at a time, and the rule counts the difference of their losses as progress.
    """
    for size in SIZES[1:]:
        frames = free_trajectory(EXAMPLES[3], size, 2.0, calls=600)
        assert abs(frames[-1].average) < 0.1


# The page


def test_the_page_holds_every_frame(data):
    for example, shown in zip(EXAMPLES, data["examples"], strict=True):
        for r, s, n in ((0, 0, 0), (3, 2, 1), (len(example.rates) - 1, len(example.starts) - 1, 3)):
            expected = trajectory(example, example.rates[r], SIZES[n], example.starts[s])
            for frame, row in zip(expected, shown["frames"][r][n][s], strict=True):
                numbers = (frame.sample, frame.point, frame.loss, frame.slope, frame.goal)
                assert row[:5] == pytest.approx(numbers, abs=1e-6)
                assert row[5] == frame.kind
                assert row[6:] == pytest.approx(frame.alpha, abs=1e-6)
            expected = free_trajectory(example, SIZES[n], example.starts[s])
            for frame, row in zip(expected, shown["free"][n][s], strict=True):
                numbers = (
                    frame.loss,
                    frame.slope,
                    frame.target,
                    frame.width,
                    frame.goal,
                    frame.average,
                    frame.next_point,
                )
                assert row == pytest.approx([frame.sample, *numbers, *frame.alpha, *frame.older], abs=1e-6)


def test_the_page_is_small_and_needs_nothing_else(rendered):
    assert len(rendered) < 1_000_000
    assert not re.search(r"(?:src|href)=|url\((?!#)|@import|fetch\(|XMLHttpRequest", rendered)
    assert "/*" not in re.sub(r"<style>.*?</style>|<script.*?</script>", "", rendered, flags=re.DOTALL)


def test_the_command_writes_the_page_whole(tmp_path, rendered):
    path = tmp_path / "page.html"
    result = invoke("--output", str(path))
    assert result.exit_code == 0, result.output
    assert result.output == f"written to {path}\n"
    assert path.read_text(encoding="utf-8") == rendered
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--output", "/nowhere/at/all.html"), "the folder /nowhere/at does not exist"),
        (("--output", "/"), "is a directory"),
    ],
)
def test_mistakes_are_explained(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert not list(tmp_path.iterdir())
