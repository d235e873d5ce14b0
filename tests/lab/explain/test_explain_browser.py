"""The interactive page in a browser: sliders change the drawing and the text, and the numbers are the library's."""

from __future__ import annotations

from itertools import product

import pytest

from borat.lab.explain.frames import CALLS, EXAMPLES, FREE_CALLS, SIZES, free_trajectory, trajectory
from borat.lab.explain.page import render
from browser import chromium as chromium

SLIDERS = ("rate", "size", "start", "step")
METHODS = ("borat", "free")
RIGHT = "\ue014"
"""Right arrow key of WebDriver."""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("explain") / "explain.html"
    path.write_text(render(), encoding="utf-8")
    return path


@pytest.fixture
def shown(chromium, page):
    chromium.open(page)
    return chromium


def choose(browser, example, method="borat"):
    browser.run(f"document.getElementById('example-{example}').click()")
    browser.run(f"document.getElementById('method-{method}').click()")


def move(browser, slider, value):
    script = (
        "const e = document.getElementById(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event('input'))"
    )
    browser.run(script, slider, value)


def text(browser, name):
    return browser.run("return document.getElementById(arguments[0]).textContent", name)


def drawing(browser):
    return browser.run("return document.getElementById('plot').innerHTML")


def goals(browser):
    """Return the next point of each method, or of z, x and y, from the labels of the drawing."""
    labels = browser.run(
        "return [...document.querySelectorAll('#plot [data-method]')].map(t => [t.dataset.method, t.textContent])"
    )
    return {method: float(label.split()[-1].replace("\u2212", "-")) for method, label in labels}


def test_opens_without_a_complaint_and_without_the_network(shown):
    assert shown.run("return document.title") == "BORAT in a minute"
    assert len(drawing(shown)) > 2000
    for example, method in product(range(len(EXAMPLES)), METHODS):
        choose(shown, example, method)
    assert shown.console_errors() == []
    assert shown.requests() == []


@pytest.mark.parametrize("slider", SLIDERS)
def test_every_slider_moves_the_drawing_and_the_text(shown, slider):
    choose(shown, 1)
    before = drawing(shown), text(shown, "headline") + text(shown, "story"), text(shown, f"{slider}-value")
    position = int(shown.run("return document.getElementById(arguments[0]).value", slider))
    move(shown, slider, position + 1 if slider in ("step", "size") else position - 1)
    after = drawing(shown), text(shown, "headline") + text(shown, "story"), text(shown, f"{slider}-value")
    assert all(a != b for a, b in zip(before, after, strict=True))
    assert shown.console_errors() == []


def test_sliders_obey_the_keyboard_and_have_names(shown):
    for slider in SLIDERS:
        element = shown.find(f"#{slider}")[0]
        name = {"rate": "Learning rate", "size": "Bundle size", "start": "Starting point", "step": "Step"}[slider]
        assert element.accessible_name.startswith(name)
        move(shown, slider, 0)
        element.send_keys(RIGHT)
        assert shown.run("return document.activeElement.id") == slider
        assert int(element.get_property("value")) == 1
        assert element.get_attribute("aria-valuetext") == text(shown, f"{slider}-value")


@pytest.mark.parametrize("e", range(len(EXAMPLES)), ids=[example.name for example in EXAMPLES])
def test_the_next_points_are_the_librarys(shown, e):
    example = EXAMPLES[e]
    choose(shown, e)
    for rate, size, start in product((1, 5), range(len(SIZES)), (0, len(example.starts) - 1)):
        frames = trajectory(example, example.rates[rate], SIZES[size], example.starts[start])
        for slider, value in (("rate", rate), ("size", size), ("start", start)):
            move(shown, slider, value)
        for step in (0, 3, CALLS - 1):
            move(shown, "step", step)
            first = frames[step - step % (SIZES[size] - 1)]
            expected = {
                "sgd": first.point - example.rates[rate] * first.slope,
                "alig": first.goal,
                "borat": frames[step].goal,
            }
            assert goals(shown) == pytest.approx(expected, abs=6e-5)
            rows = len(shown.find("#pieces tr"))
            assert rows == len(frames[step].alpha)


@pytest.mark.parametrize("e", range(len(EXAMPLES)), ids=[example.name for example in EXAMPLES])
def test_the_three_points_of_free_borat_are_the_librarys(shown, e):
    example = EXAMPLES[e]
    choose(shown, e, "free")
    for size, start in product(range(len(SIZES)), (0, len(example.starts) - 1)):
        frames = free_trajectory(example, SIZES[size], example.starts[start])
        move(shown, "size", size)
        move(shown, "start", start)
        for step in (0, 4, FREE_CALLS - 1):
            move(shown, "step", step)
            frame = frames[step]
            expected = {"z": frame.goal, "x": frame.average, "y": frame.next_point}
            assert goals(shown) == pytest.approx(expected, abs=6e-5)
            cells = shown.run("return [...document.querySelectorAll('#pieces tr')].map(r => r.innerText.split('\\t'))")
            assert len(cells) == len(frame.alpha)
            assert cells[-1][0] == "the target"
            assert float(cells[-1][2].replace("\u2212", "-")) == pytest.approx(frame.target, abs=6e-5)
            assert cells[-2][0] == f"line {step + 1}"
            assert float(cells[-2][1].replace("\u2212", "-")) == pytest.approx(frame.point, abs=6e-5)
    assert shown.console_errors() == []


def test_free_borat_has_no_learning_rate(shown):
    seen = "return ['rate', 'size', 'start', 'step'].filter(id => document.getElementById(id).checkVisibility())"
    assert shown.run(seen) == list(SLIDERS)
    choose(shown, 0, "free")
    assert shown.run(seen) == ["size", "start", "step"]
    assert "no learning rate" in shown.find("main")[0].text
    for slider in ("size", "start", "step"):
        before = drawing(shown), text(shown, "headline") + text(shown, "story")
        position = int(shown.run("return document.getElementById(arguments[0]).value", slider))
        move(shown, slider, position - 1 if slider == "start" else position + 1)
        if slider == "size":  # the first batch has one line, whatever the size
            move(shown, "step", 3)
        assert all(
            a != b
            for a, b in zip(before, (drawing(shown), text(shown, "headline") + text(shown, "story")), strict=True)
        )
    choose(shown, 0)
    assert shown.run(seen) == list(SLIDERS)


def test_the_text_tells_a_step_of_free_borat(shown):
    choose(shown, 3, "free")
    move(shown, "step", 5)
    frame = free_trajectory(EXAMPLES[3], 3, 2.0)[5]
    assert text(shown, "headline") == "FreeBORAT with N = 3, batch 6"
    story = text(shown, "story")
    assert f"Line 6 was measured at y = {frame.point:.4f}".rstrip("0") in story
    assert f"The target is lower, at {frame.target:.4f}".rstrip("0") in story
    assert "2/7 of its distance to z" in story


def test_the_text_tells_the_papers_example(shown):
    choose(shown, 2)
    move(shown, "step", 1)
    assert text(shown, "headline") == "BORAT3, update 1: batch 2 of 2"
    story = text(shown, "story")
    assert "where line 1 and line 2 meet" in story
    assert "moves from 0.6 to 0 (kind MAX2)" in story
    assert "SGD would go to \u22120.84" in story


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1400])
def test_fits_every_screen_in_both_schemes(chromium, page, width, dark):
    chromium.open(page, width=width, height=844, dark=dark)
    for example, method in product(range(len(EXAMPLES)), METHODS):
        choose(chromium, example, method)
        move(chromium, "step", 3)
        assert chromium.overflow() <= 0
        assert chromium.run(LABELS_OUTSIDE) == []
    colours = chromium.run("const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]")
    brightness = [sum(int(v) for v in colour[4:-1].split(",")) / 3 for colour in colours]
    assert (brightness[0] > 200) == dark
    assert (brightness[1] < 60) == dark


LABELS_OUTSIDE = """
const box = document.getElementById('plot').getBoundingClientRect();
return [...document.querySelectorAll('#plot text')].filter(t => {
  const b = t.getBoundingClientRect();
  return b.left < box.left || b.right > box.right || b.top < box.top || b.bottom > box.bottom;
}).map(t => t.textContent);
"""
