"""The documentation site: it builds without warnings, its links resolve, and it loads nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
import torch

from borat import ALIG, BORAT, FreeBORAT

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


class Page(HTMLParser):
    """The links, anchors and loaded files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in ("script", "img", "iframe") and found.get("src"):
            self.loads.append(found["src"])
        if tag == "link" and found.get("rel") == "stylesheet":
            self.loads.append(found["href"])


def test_links_and_anchors(site):
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 15
    checked = 0
    for path, page in pages.items():
        for link in page.links:
            target, anchor = urldefrag(link)
            if re.match(r"[a-z]+:", target):
                continue
            place = path if not target else (path.parent / unquote(target)).resolve()
            place = place / "index.html" if place.is_dir() else place
            assert place.exists(), f"{path.relative_to(site)} -> {link}"
            if anchor and place in pages:
                assert unquote(anchor) in pages[place].anchors, f"{path.relative_to(site)} -> {link}"
                checked += 1
    assert checked > 50


def test_pages_load_nothing_from_other_hosts(site):
    for path in site.rglob("*.html"):
        for source in Page(path).loads:
            assert not source.startswith(("http:", "https:", "//")), f"{path.name} loads {source}"


def test_formulas_are_mathml(site):
    page = (site / "how-it-works" / "index.html").read_text(encoding="utf-8")
    assert page.count("<math") > 10
    assert "arithmatex" not in page
    assert 'stretchy="true"' in page, "large brackets are as high as their contents"
    assert "Big" not in page
    reference = (site / "reference" / "optimizer" / "index.html").read_text(encoding="utf-8")
    assert "<math" in reference
    for sphinx in (":math:", ":class:", ":meth:", ".. math"):
        assert sphinx not in reference


def test_memory_of_the_optimizers():
    """The bytes of state per parameter on the page for users of other optimizers, counted."""
    schedulefree = pytest.importorskip("schedulefree", reason="needs the peers extra")
    prodigyopt = pytest.importorskip("prodigyopt", reason="needs the peers extra")
    makers = {
        "SGD with momentum": lambda params: torch.optim.SGD(params, 0.1, momentum=0.9),
        "AdamW": torch.optim.AdamW,
        "Schedule-Free AdamW": schedulefree.AdamWScheduleFree,
        "Prodigy": prodigyopt.Prodigy,
        "`ALIG`": ALIG,
        "`BORAT`": BORAT,
        "`FreeBORAT`": FreeBORAT,
        "`FreeBORAT(bundle_size=2)`": lambda params: FreeBORAT(params, bundle_size=2),
        "`FreeBORAT(bundle_size=5)`": lambda params: FreeBORAT(params, bundle_size=5),
    }
    page = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*?) \| (\d+) \| \w", page.partition("## Memory")[2], re.MULTILINE)
    on_page = {name: int(count) for names, count in rows for name in names.split(", ")}
    assert on_page == {name: bytes_per_parameter(make) for name, make in makers.items()}


def bytes_per_parameter(make) -> float:
    param = torch.nn.Parameter(torch.randn(1000))
    optimizer = make([param])
    if hasattr(optimizer, "train"):
        optimizer.train()
    for _ in range(2):
        optimizer.zero_grad()
        loss = param.square().mean()
        loss.backward()
        optimizer.step(lambda loss=loss: loss)
    vectors = [x for x in optimizer.state[param].values() if isinstance(x, torch.Tensor) and x.numel() > 1]
    return sum(x.numel() * x.element_size() for x in vectors) / param.numel()
