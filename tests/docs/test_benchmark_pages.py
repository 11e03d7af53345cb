"""The benchmarks' pages are what the generator makes of the results, and say where those come from."""

import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.pages.document import DRAWN, FOLDER, pages
from benchmarks.pages.fault_questions import FAULTS
from benchmarks.pages.front import pictures
from benchmarks.pages.page import Page, Shown
from benchmarks.pages.questions import QUESTIONS
from benchmarks.pages.systems import SYSTEMS
from benchmarks.shared import provenance

SCRIPTS = [
    path
    for path in provenance.BENCHMARKS.glob("*/*.py")
    if "__main__" in path.read_text() and not path.stem.endswith("_rank")
]


def test_what_is_committed_is_what_the_generator_makes():
    written = [*FOLDER.glob("*.md"), *FOLDER.parent.glob("steps-*.svg")]
    assert {path: path.read_text() for path in written} == pages() | pictures(), "run `make benchmarks`"
    assert {path.name for path in FOLDER.parent.glob("*.png")} == DRAWN.keys()


def test_every_result_says_where_it_comes_from():
    for path in provenance.RESULTS.glob("*.json"):
        found = provenance.load(path.stem)
        assert {"date", "commit", "machine", "command"} <= found.keys(), path
        assert (provenance.ROOT / provenance.command_today(found).split()[1]).exists(), found["command"]


def test_a_result_from_before_its_script_moved_shows_the_path_of_today():
    old = {"command": "python benchmarks/steps.py --links 1gbit"}
    assert provenance.command_today(old) == "python benchmarks/steps/steps.py --links 1gbit"
    new = {"command": provenance.command_today(old)}
    assert provenance.command_today(new) == new["command"]


def test_every_script_has_a_name_of_its_own_and_a_line_in_the_readme():
    lines = (provenance.BENCHMARKS / "README.md").read_text().splitlines()
    names = [path.name for path in SCRIPTS]
    assert len(names) == len(set(names))
    assert not [name for name in names if sum(f"`{name}`" in line for line in lines) != 1]


def test_every_script_finds_the_others_with_nothing_set():
    """By the repository's root, which it puts on the path before it imports them."""
    for path in SCRIPTS:
        before, found, _ = path.read_text().partition("\nfrom benchmarks.")
        assert not found or "sys.path.append(str(Path(__file__).parents[2]))" in before, path


def test_everything_is_read_in_minutes():
    """A word has a letter or a digit. Prose is all outside of tables: questions, verdicts, notes and origins."""
    lines = [line for text in pages().values() for line in text.splitlines()]
    assert _words(line for line in lines if not line.startswith("|")) <= 1725
    assert _words(lines) <= 4950


def test_readme_and_pages_name_the_commits_of_results():
    """Of each script, where it has several results of one of them."""
    commits = defaultdict(set)
    for path in provenance.RESULTS.glob("*.json"):
        found = provenance.load(path.stem)
        commits[provenance.command_today(found).split()[1]].add(found["commit"].split(",")[0].rstrip("+"))
    written = "".join(path.read_text() for path in (provenance.ROOT / "README.md", *FOLDER.parent.glob("*.md")))
    named = re.findall(r"\b([0-9a-f]{7,8})\b[^`]{0,40}`(?:python )?(benchmarks/[\w/]+\.py)", written)
    assert len(named) >= 8
    assert not [(commit, script) for commit, script in named if commit not in commits[script]], commits


def test_no_result_is_kept_that_no_page_shows():
    """Pages are those here and the written ones, which name their results."""
    written = "".join(path.read_text() for path in (provenance.ROOT / "docs").glob("*.md"))
    shown = {name for make in (*QUESTIONS, *FAULTS, *SYSTEMS) for table in make().tables for name in table.results}
    found = {path.stem for path in provenance.RESULTS.glob("*.json")}
    assert not [name for name in found - shown if f"results/{name}.json" not in written]


def _words(lines: Iterable[str]) -> int:
    return sum(any(map(str.isalnum, word)) for line in lines for word in line.replace("|", " ").split())


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one commit with a result of `wire.py`, as it was just written."""
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "first")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["/somewhere/wire.py", "--only", "a b"])
    provenance.save("wire.json", rows=[1])
    return tmp_path


def git(folder: Path, *command: str) -> None:
    someone = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    subprocess.run(["git", *someone, *command], cwd=folder, check=True)


def test_a_page_says_which_command_measured_it_and_how_many_commits_ago(repository: Path):
    page = Page("wire", "Sent?", "Yes.", [Shown(["wire"], ["a"], [["b"]])])
    for _ in range(2):
        git(repository, "commit", "--quiet", "--allow-empty", "--message", "later")
    assert "`python benchmarks/steps/wire.py --only 'a b'`" in page.markdown(ages=True)
    assert f"{provenance.load('wire')['commit']} (2 commits ago): " in page.markdown(ages=True)
    assert "ago" not in page.markdown()


def test_without_git_a_page_has_no_ages(repository: Path):
    shutil.rmtree(repository / ".git")
    page = Page("wire", "Sent?", "Yes.", [Shown(["wire"], ["a"], [["b"]])])
    assert page.markdown(ages=True) == page.markdown()
