"""The documentation: its blocks run, its site builds without a warning, offline, and can be searched."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gradwire as gw
from gradwire.lab.catalogue import catalogue
from tests.support.browser import CHROMIUM, Page, browser
from tests.support.ranks import run_python, run_ranks

REPOSITORY = Path(__file__).parents[2]
PAGES = REPOSITORY / "docs"
TUTORIALS = {"start.md": "checkpoint-*.pt", "practice.md": "practice-*.pt"}
KINDS = ("Compressors", "Memories", "Communicators", "Controllers")
_LOADED = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=["']?(https?:)?//""")


def blocks(path: Path) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_runs_as_it_stands(page: str, ranks: int, tmp_path: Path) -> None:
    script = tmp_path / "tutorial.py"
    script.write_text(blocks(PAGES / page))
    if ranks > 1:
        run_ranks([str(script)], ranks, cwd=tmp_path)
    else:
        run_python([str(script)], cwd=tmp_path)
    assert len(list(tmp_path.glob(TUTORIALS[page]))) == ranks


@pytest.mark.parametrize("page", [*sorted(PAGES.glob("*.md")), REPOSITORY / "README.md"], ids=lambda page: page.name)
def test_what_follows_in_a_list_is_indented_as_the_site_wants_it(page: Path) -> None:
    """By 4: the site ends a list at a paragraph that is indented by less, where GitHub goes on."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    starts = re.findall(r"\n\n( +)(\S.{0,30})", text)
    assert not [words for indent, words in starts if len(indent) % 4]


def test_every_measured_question_is_in_the_navigation() -> None:
    navigation = (REPOSITORY / "mkdocs.yml").read_text()
    assert not [page.name for page in PAGES.glob("benchmarks/*.md") if f"benchmarks/{page.name}" not in navigation]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the site's generator is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=500, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return folder


@pytest.mark.long
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


@pytest.mark.long
def test_every_name_is_in_the_reference(site: Path) -> None:
    text = (site / "reference.html").read_text()
    names = [name for name in dir(gw) if isinstance(getattr(gw, name), type)]
    assert not [name for name in names if f'.{name}"' not in text]


@pytest.mark.long
def test_measured_rows_and_sources_are_filled_in(site: Path) -> None:
    chosen = (site / "choose.html").read_text()
    assert "<!-- steps" not in chosen
    assert ratio("topk:0.01") in chosen
    assert "class" in (site / "extend.html").read_text()
    assert "Truncated" in (site / "extend.html").read_text()


@pytest.mark.long
def test_the_site_loads_nothing_from_elsewhere_and_can_be_searched(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert not [page for page in pages if _LOADED.search(page.read_text())]
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert any("error feedback" in entry["text"].lower() for entry in index["docs"])


@pytest.mark.long
def test_readme_and_the_site_begin_with_the_table_that_answers(site: Path) -> None:
    for begins in (PAGES / "index.md", REPOSITORY / "README.md"):
        assert begins.read_text().splitlines()[2].startswith(("<!-- answers README.md -->", "| front end"))
    page = (site / "index.html").read_text()
    for fact in ("bytes a parameter", "21 to 27", "74 times sooner", 'href="gpu.html#what-has-run-where"'):
        assert fact in page, fact


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_pages_fit_screens_and_are_as_dark_as_the_reader_asks(
    site: Path, width: int, dark: bool, tmp_path: Path
) -> None:
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine")
    with browser(tmp_path / "browser") as tab:
        for name in ("index", "choose", "extend", "troubleshooting", "algorithms/topk"):
            tab.open(site / f"{name}.html", width=width, dark=dark)
            assert tab.value("document.documentElement.scrollWidth") <= width
            assert is_dark(tab) == dark


def is_dark(tab: Page) -> bool:
    paper = re.findall(r"\d+", tab.value("getComputedStyle(document.body).backgroundColor"))
    return sum(map(int, paper[:3])) < 300


@pytest.mark.long
def test_pages_turn_dark_when_the_system_does(site: Path, tmp_path: Path) -> None:
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine")
    with browser(tmp_path / "browser") as tab:
        for dark in (False, True, False):
            tab.open(site / "index.html", dark=dark)
            assert is_dark(tab) == dark
            assert tab.value(PICTURES) == [f"steps-{'dark' if dark else 'light'}.svg"]


PICTURES = """[...document.images].filter(each => each.offsetParent && each.naturalWidth)
  .map(each => each.src.split(/[/#]/).at(-2))"""
SEARCH = """(() => {
  const query = document.querySelector("[data-md-component=search-query]");
  query.focus();
  query.value = "residual";
  query.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
  return document.querySelectorAll(".md-search-result__link").length;
})()"""


@pytest.mark.long
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
