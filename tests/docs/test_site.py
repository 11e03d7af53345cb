"""The site that `make docs` builds, which runs these tests: it is complete, dark where the reader asks, and whole
without a network."""

import json
import os
import re
import time
from pathlib import Path

import pytest

import gradwire as gw
from gradwire.lab.catalogue import catalogue
from tests.support.browser import CHROMIUM, Page, browser

REPOSITORY = Path(__file__).parents[2]
PAGES = REPOSITORY / "docs"
KINDS = ("Compressors", "Memories", "Communicators", "Controllers")
_LOADED = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=["']?(https?:)?//""")


@pytest.fixture(scope="module")
def site() -> Path:
    if not (folder := os.environ.get("SITE")):
        pytest.skip("`make docs` builds the site and runs these tests")
    return REPOSITORY / folder


def test_the_site_has_a_page_per_algorithm_with_its_paper(site: Path) -> None:
    for entry in [entry for kind in KINDS for entry in catalogue()[kind]]:
        text = (site / "algorithms" / f"{entry.name}.html").read_text()
        links = re.findall(r"https?://[^\s,;)]+", entry.paper)
        assert all(link in text for link in links)
    assert ratio("acpsgd:4") in (site / "algorithms" / "acpsgd.html").read_text()


def ratio(way: str) -> str:
    """A step's time to that without communication, of the first row that was measured."""
    ms = json.loads((REPOSITORY / "benchmarks" / "results" / "steps_100mbit.json").read_text())["rows"][0]["ms"]
    return f"{ms[way]['median'] / ms['nocomm']['median']:.1f}x"


def test_every_name_is_in_the_reference(site: Path) -> None:
    text = (site / "reference.html").read_text()
    # a method stands below its class
    assert re.search(r'<h3 id="[\w.]+\.DistributedOptimizer"', text)
    assert re.search(r'<h4 id="[\w.]+\.DistributedOptimizer\.skip"', text)
    names = [name for name in dir(gw) if isinstance(getattr(gw, name), type)]
    assert not [name for name in names if f'.{name}"' not in text]


def test_measured_rows_and_sources_are_filled_in(site: Path) -> None:
    chosen = (site / "choose.html").read_text()
    assert "<!-- steps" not in chosen
    assert ratio("topk:0.01") in chosen
    for page, code in (("extend", "flat_state"), ("recipes", "DistributedDataParallel")):
        assert code in (site / f"{page}.html").read_text()
        assert "](../" not in (site / f"{page}.html").read_text()


def test_code_that_the_site_shows_is_a_link_in_the_repository() -> None:
    assert not [page for page in PAGES.rglob("*.md") if "<!-- source" in page.read_text()]


def test_the_site_loads_nothing_from_elsewhere_and_can_be_searched(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert not [page for page in pages if _LOADED.search(page.read_text())]
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert any("error feedback" in entry["text"].lower() for entry in index["docs"])


def test_readme_and_the_site_begin_with_the_table_that_answers(site: Path) -> None:
    for begins in (PAGES / "index.md", REPOSITORY / "README.md"):
        first = begins.read_text().splitlines()[:8]
        assert any(line.startswith(("<!-- answers README.md -->", "| front end")) for line in first)
    page = (site / "index.html").read_text()
    steps = re.findall(r"DDP's (\d+ to \d+)", (REPOSITORY / "README.md").read_text())
    assert steps
    for fact in ("bytes a parameter", *steps, "74 times sooner", 'href="gpu.html#what-has-run-where"'):
        assert fact in page, fact


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_pages_fit_screens_and_are_as_dark_as_the_reader_asks(
    site: Path, width: int, dark: bool, tmp_path: Path
) -> None:
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine")
    with browser(tmp_path / "browser") as tab:
        for name in ("index", "choose", "extend", "reference", "troubleshooting", "algorithms/topk"):
            tab.open(site / f"{name}.html", width=width, dark=dark)
            assert tab.value("document.documentElement.scrollWidth") <= width
            assert width < 1280 or tab.value(CUT) == 0
            assert tab.value(BROKEN) == []
            assert is_dark(tab) == dark


def test_lines_of_code_are_whole_on_a_wide_screen(site: Path, tmp_path: Path) -> None:
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine")
    with browser(tmp_path / "browser") as tab:
        for name in ("recipes", "faults", "practice"):
            tab.open(site / f"{name}.html", width=1920)
            assert tab.value(CUT_CODE) == 0


def is_dark(tab: Page) -> bool:
    paper = re.findall(r"\d+", tab.value("getComputedStyle(document.body).backgroundColor"))
    return sum(map(int, paper[:3])) < 300


def test_pages_turn_dark_when_the_system_does(site: Path, tmp_path: Path) -> None:
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine")
    with browser(tmp_path / "browser") as tab:
        for dark in (False, True, False):
            tab.open(site / "index.html", dark=dark)
            assert is_dark(tab) == dark
            assert tab.value(PICTURES) == [f"steps-{'dark' if dark else 'light'}.svg"]


CUT = """[...document.querySelectorAll(".md-typeset__scrollwrap")]
  .filter(box => box.scrollWidth > box.clientWidth + 1).length"""
CUT_CODE = """[...document.querySelectorAll(".md-content pre code")]
  .filter(each => each.scrollWidth > each.clientWidth + 1).length"""
BROKEN = """[...document.querySelectorAll(".md-typeset td:nth-child(-n+2) code")]
  .filter(each => /^[\\w.]+$/.test(each.textContent) && each.getClientRects().length > 1)
  .map(each => each.textContent)"""
PICTURES = """[...document.images].filter(each => each.offsetParent && each.naturalWidth)
  .map(each => each.src.split(/[/#]/).at(-2))"""
SEARCH = """(() => {
  const query = document.querySelector("[data-md-component=search-query]");
  query.focus();
  query.value = "residual";
  query.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
  return document.querySelectorAll(".md-search-result__link").length;
})()"""


def test_the_search_needs_no_server(site: Path, tmp_path: Path) -> None:
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine")
    with browser(tmp_path / "browser") as tab:
        tab.open(site / "benchmarks" / "steps.html")
        tab.value('document.querySelector("#__search").click()')
        until = time.monotonic() + 60
        while not tab.value(SEARCH) and time.monotonic() < until:
            time.sleep(0.5)
        assert tab.value(SEARCH) > 3
        assert tab.complaints() == []
