"""The report as a reader sees it, in a real browser: open, filter, sort, hover, in dark mode and on a phone."""

from __future__ import annotations

import json
import re

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

import fabricate
from borat.lab.config import RunConfig
from borat.lab.report import write_report
from borat.lab.store.records import Experiment
from borat.lab.store.run import Run
from borat.lab.training.train import train
from browser import chromium as chromium

EVIL = (
    "</script><script>document.title = 'taken over'</script><!--<img src=x onerror=\"document.title = 'taken over'\">"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A made-up grid with two seeds, a second task, a hostile name, and a run that has just begun."""
    folder = tmp_path_factory.mktemp("runs")
    fabricate.write_grid(folder / "ce", radii=(50.0, 100.0), seeds=2, epochs=3)
    fabricate.write_grid(folder / "lines", radii=(None,), epochs=3, data="digits")
    fabricate.write_run(folder / "evil", RunConfig(optimizer="borat", data=EVIL, model=EVIL, epochs=3), accuracy=0.5)
    Run.create(folder / "early", RunConfig(optimizer="borat", data="digits", lr=3.0))
    Experiment(**fabricate.EXPERIMENT).write(folder / "ce")
    write_report(folder, folder / "report.html", title=EVIL)
    return folder / "report.html"


@pytest.fixture(scope="module")
def real_runs(tmp_path_factory):
    """Real training: two methods, two learning rates, two radii."""
    folder = tmp_path_factory.mktemp("real")
    for optimizer in ("sgd", "borat"):
        for lr in (0.1, 10.0):
            for radius in (5.0, 20.0):
                config = RunConfig(optimizer=optimizer, lr=lr, radius=radius, epochs=2, train_limit=300)
                train(config, folder / config.digest)
    return folder


def wait(chromium, script):
    """Wait until a JavaScript expression is true."""
    return WebDriverWait(chromium.driver, 10).until(lambda _: chromium.run(f"return {script}"))


def column(chromium, key):
    """Return the texts of a column of the table of runs."""
    return chromium.run(
        """const keys = [...document.querySelectorAll("#runs-table th")].map((header) => header.dataset.key);
        const rows = [...document.querySelectorAll("#runs-table tbody tr")];
        return rows.map((row) => row.cells[keys.indexOf(arguments[0])].textContent)""",
        key,
    )


def choose(chromium, selector, value):
    Select(chromium.find(selector)[0]).select_by_visible_text(value)


def task_named(chromium, selector, start):
    """Return the option that begins with these words."""
    options = [option.text for option in Select(chromium.find(selector)[0]).options]
    return next(option for option in options if option.startswith(start))


def test_opens_without_errors_or_requests(chromium, page):
    chromium.open(page)
    wait(chromium, "document.querySelectorAll('.js-plotly-plot').length >= 10")
    assert chromium.console_errors() == []
    assert chromium.requests() == []
    assert "82 runs (76 finished, 5 diverged, 1 running)" in chromium.find("#summary")[0].text
    assert "has no finished epoch yet" in chromium.find("#notes")[0].text
    drawn = chromium.run(
        "return [...document.querySelectorAll('.js-plotly-plot')].map((p) => p.querySelector('.main-svg') !== null)"
    )
    assert all(drawn)


def test_hostile_names_are_only_text(chromium, page):
    chromium.open(page)
    assert chromium.driver.title == EVIL
    assert chromium.find("h1")[0].text == EVIL
    assert chromium.run("return document.querySelectorAll('img, main script').length") == 0
    assert any(EVIL in title.text for title in chromium.find("#heatmaps h3"))


def test_verdict_and_the_papers_numbers(chromium, page):
    chromium.open(page)
    verdict = chromium.find("#verdict")[0].text
    assert "Decades of usable learning rates: 2 for BORAT5, 1 for BORAT3, 0 for SGD and ALI-G." in verdict
    usable = chromium.run("return [...document.querySelectorAll('#verdict .usable')].map((chip) => chip.textContent)")
    assert usable.count("✓ 0.1") == 8, "at 0.1, all four methods work in both tasks"
    experiment = chromium.find("#experiments")[0].text
    for words in ("Robustness (Figure 5), mini scale", "75.4 ± 1.2", "78.3", "50 % & more supported"):
        assert words in experiment


def test_filters(chromium, page):
    chromium.open(page)
    total = len(column(chromium, "method"))
    choose(chromium, "[data-filter=method]", "BORAT5")
    assert set(column(chromium, "method")) == {"BORAT5"}
    some = len(column(chromium, "method"))
    assert 0 < some < total
    choose(chromium, "[data-filter=task]", task_named(chromium, "[data-filter=task]", "digits, wrn"))
    assert 0 < len(column(chromium, "method")) < some
    choose(chromium, "[data-filter=task]", "all")
    choose(chromium, "[data-filter=method]", "all")
    choose(chromium, "[data-filter=status]", "diverged")
    assert column(chromium, "status") == ["\N{MULTIPLICATION SIGN} diverged"] * 5
    assert chromium.find("#runs-count")[0].text == f"5 of {total} runs"
    choose(chromium, "[data-filter=status]", "all")
    chromium.find("[data-filter=search]")[0].send_keys("early")
    assert column(chromium, "run") == ["early"]


def test_sorting_is_numeric_and_toggles(chromium, page):
    chromium.open(page)
    header = chromium.find("th[data-key=lr] button")[0]
    header.click()
    rates = [float(text) for text in column(chromium, "lr")]
    assert rates == sorted(rates)
    assert (rates[0], rates[-1]) == (0.01, 10.0), "not as text"
    assert chromium.find("th[data-key=lr]")[0].get_attribute("aria-sort") == "ascending"
    header.send_keys(Keys.ENTER)
    assert [float(text) for text in column(chromium, "lr")] == rates[::-1]
    assert chromium.find("th[data-key=lr]")[0].get_attribute("aria-sort") == "descending"
    accuracy = chromium.find("th[data-key=accuracy] button")[0]
    for _ in range(2):
        accuracy.send_keys(Keys.SPACE)
        assert column(chromium, "accuracy")[-1] == "\N{EN DASH}", "what is missing comes last, up and down"


def test_seeds_are_grouped_on_demand(chromium, page):
    chromium.open(page)
    chromium.find("#group-seeds")[0].click()
    choose(chromium, "[data-filter=method]", "BORAT3")
    rows = list(zip(column(chromium, "seed"), column(chromium, "accuracy"), strict=True))
    grouped = [accuracy for seed, accuracy in rows if seed == "2 seeds"]
    assert len(grouped) == 8
    assert all(re.fullmatch(r"\d+\.\d\d ± 0\.28", accuracy) for accuracy in grouped), "0.4 points apart"


def test_hovering_a_cell_tells_its_accuracy(chromium, page):
    chromium.open(page)
    panels = {panel.get_attribute("aria-label"): panel for panel in chromium.find(".heatmap")}
    assert {"Heatmap of SGD", "Heatmap of BORAT5"} <= set(panels)
    area = panels["Heatmap of BORAT3"].find_element("css selector", ".nsewdrag")
    chromium.hover(area, 0.375, 0.75)  # the second of four learning rates, the lower of two radii
    tooltip = wait(chromium, "document.querySelector('.hoverlayer .hovertext')?.textContent")
    assert "lr 0.1, radius 50" in tooltip
    assert re.search(r"test accuracy 75\.2 ± 0\.3 %", tooltip)
    area = panels["Heatmap of SGD"].find_element("css selector", ".nsewdrag")
    chromium.hover(area, 0.875, 0.25)
    wait(chromium, "document.querySelector('.hoverlayer .hovertext')?.textContent.endsWith('diverged')")


def test_curves_follow_the_reader(chromium, page):
    chromium.open(page)
    choose(chromium, "#curves-task", task_named(chromium, "#curves-task", "cifar100"))
    lines = "document.querySelectorAll('#plot-train_loss .scatterlayer .js-line').length"
    wait(chromium, f"{lines} > 0")
    names = [button.text.splitlines()[-1] for button in chromium.find("#curves-legend button")]
    assert [name.partition(",")[0] for name in names] == ["SGD", "ALI-G", "BORAT3", "BORAT5"]
    before = chromium.run(f"return {lines}")
    chromium.find("#curves-legend button")[0].click()
    wait(chromium, f"{lines} < {before}")
    choose(chromium, "#curves-choice", "all settings of BORAT5")
    assert len(chromium.find("#curves-legend button")) == 8
    assert len(chromium.find("#kinds-panels figure")) == 8
    choose(chromium, "#curves-choice", "all settings of SGD")
    wait(chromium, "document.getElementById('kinds').hidden && document.getElementById('step-sizes').hidden")
    assert chromium.console_errors() == []


def test_dark_mode_recolours_page_and_plots(chromium, page):
    chromium.open(page)
    colours = """(() => {
        const plot = document.querySelector(".heatmap");
        const fills = [".bg", ".xtick text"].map((part) => plot.querySelector(part).style.fill);
        return [getComputedStyle(document.body).backgroundColor, ...fills];
    })()"""
    light = wait(chromium, colours)
    chromium.set_dark(True)
    dark = wait(chromium, f"(({json.dumps(light)}).every((colour, i) => colour !== {colours}[i])) && {colours}")
    brightness = [[sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in scheme] for scheme in (light, dark)]
    assert [a > b for a, b in zip(*brightness, strict=True)] == [True, True, False], "backgrounds dark, text light"
    chromium.set_dark(False)
    wait(chromium, f"JSON.stringify({colours}) === {json.dumps(json.dumps(light, separators=(',', ':')))}")


def test_texts_on_cells_can_be_read(chromium, page):
    """Every cell has a contrast of at least 4.5, in light and dark mode."""
    for dark in (False, True):
        chromium.open(page, dark=dark)
        wait(chromium, "document.querySelector('.heatmap .textpoint text') !== null")
        contrasts = chromium.run(CONTRASTS)
        assert len(contrasts) > 20
        assert min(contrasts) >= 4.5


CONTRASTS = """
const light = (rgb) => rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const numbers = (text) => text.match(/\\d+/g).slice(0, 3).map(Number);
return [...document.querySelectorAll(".heatmap")].flatMap((panel) => {
  const [cells, labels] = panel.data;
  const mix = (share) => {
    const place = Math.min(3.999, 4 * share), low = Math.floor(place);
    const channels = (hex) => [1, 3, 5].map((j) => parseInt(hex.slice(j, j + 2), 16));
    const [a, b] = [low, low + 1].map((i) => channels(cells.colorscale[i][1]));
    return a.map((v, i) => v + (place - low) * (b[i] - v));
  };
  const texts = [...panel.querySelectorAll(".textpoint text")];
  return labels.x.map((x, i) => {
    const ground = light(mix((cells.z[labels.y[i]][x] - cells.zmin) / (cells.zmax - cells.zmin)));
    const ink = light(numbers(texts[i].style.fill));
    return (Math.max(ground, ink) + 0.05) / (Math.min(ground, ink) + 0.05);
  });
});
"""


def test_fits_a_phone(chromium, page):
    chromium.open(page, width=390, height=844)
    wait(chromium, "document.querySelectorAll('.js-plotly-plot').length >= 10")
    assert chromium.overflow() <= 0
    edges = chromium.run(
        "return [...document.querySelectorAll('.js-plotly-plot')].map((plot) => plot.getBoundingClientRect().right)"
    )
    assert max(edges) <= 390
    assert chromium.console_errors() == []


def test_real_runs(chromium, real_runs):
    write_report(real_runs, real_runs / "report.html")
    chromium.open(real_runs / "report.html")
    wait(chromium, "document.querySelectorAll('.heatmap .main-svg').length > 0")
    assert chromium.console_errors() == []
    stored = [Run(path.parent).metrics for path in real_runs.rglob("config.json")]
    accuracies = [metrics.result["test_accuracy"] for metrics in stored if metrics.status == "finished"]
    shown = chromium.run(
        "return [...document.querySelectorAll('.heatmap .textpoint text')].map((text) => text.textContent)"
    )
    assert len(shown) == len(accuracies)
    assert set(shown) == {f"{100 * accuracy:.1f}" for accuracy in accuracies}
    assert len(chromium.find("#runs-table tbody tr")) == 8
    assert chromium.find("#kinds")[0].is_displayed()
