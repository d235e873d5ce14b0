"""The drawings of the documentation, by the scripts in ``docs/drawing``."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

import illustrations
import theory_figures


def test_the_illustrations_are_written(tmp_path):
    illustrations.draw(tmp_path)
    files = sorted(tmp_path.iterdir())
    names = ["bundle", "free-borat", "gap", "learning-rate-schedules", "non-convex-example"]
    assert [file.name for file in files] == [f"{name}.{kind}" for name in names for kind in ("pdf", "png")]
    for file in files:
        assert file.read_bytes().startswith({".pdf": b"%PDF", ".png": b"\x89PNG"}[file.suffix])


def test_the_schedules_are_the_labs():
    assert set(illustrations.learning_rates("constant")) == {0.1}
    manual = illustrations.learning_rates("manual")
    assert [manual[10 * epoch] for epoch in (0, 59, 60, 120, 160)] == pytest.approx([0.1, 0.1, 0.02, 0.004, 0.0008])
    cosine = illustrations.learning_rates("cosine")
    assert sum(b > 10 * a for a, b in pairwise(cosine)) == 3, "three warm restarts"


@pytest.mark.parametrize(
    "draw",
    [
        illustrations.draw_schedules,
        illustrations.draw_bundle,
        illustrations.draw_non_convex_example,
        illustrations.draw_free,
        illustrations.draw_gap,
    ],
)
def test_pictures_have_axes_and_nothing_on_another(draw):
    figure = draw()
    figure.canvas.draw()
    assert figure.axes[0].get_ylabel()
    for axes in figure.axes:
        assert axes.get_xlabel() or len(axes.get_xticks()) in (3, 4)
        ticks = [label for label in axes.get_xticklabels() if label.get_text()]
        boxes = [text.get_window_extent() for text in (*axes.texts, *ticks) if text.get_text()]
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
        if legend := axes.get_legend():
            box = legend.get_window_extent()
            points = [axes.transData.transform(line.get_xydata()) for line in axes.lines]
            assert not any(box.contains(*point) for line in points for point in line)


def test_rates_are_drawn(tmp_path, monkeypatch):
    panels = [replace(panel, updates=8, runs=1) for panel in theory_figures.synthetic_panels()]
    monkeypatch.setattr(theory_figures, "synthetic_panels", lambda: panels)
    assert len(panels) == 6
    theory_figures.draw(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["theory-lemmas.png", "theory-rates.png"]
