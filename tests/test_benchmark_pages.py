"""The benchmarks' pages are what the generator makes of the results, and say what is older than the code."""

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import provenance
from document import FOLDER, pages
from page import Page, Shown

MARKS = re.compile(r" \*\*Older than the code\.\*\*|\| (?:older|this) \|")


def test_what_is_committed_is_what_the_generator_makes():
    """But for the marks, which follow the code: `make benchmarks` and `make docs` set them."""
    committed = {path: MARKS.sub("", path.read_text()) for path in FOLDER.glob("*.md")}
    assert committed == {path: MARKS.sub("", text) for path, text in pages().items()}, "run `make benchmarks`"


def test_every_result_says_where_it_comes_from():
    for path in provenance.RESULTS.glob("*.json"):
        found = provenance.load(path.stem)
        assert {"date", "commit", "machine", "command"} <= found.keys(), path
        assert (provenance.ROOT / found["command"].split()[1]).exists(), found["command"]


def test_around_its_tables_everything_is_read_in_minutes():
    prose = [line for text in pages().values() for line in text.splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) < 1600


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a result of `wire.py`, as it was just written."""
    for folder in ("runtime", "schedule"):
        (tmp_path / "gradwire" / folder).mkdir(parents=True)
        (tmp_path / "gradwire" / folder / "core.py").write_text("x = 1\n")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(provenance, "commit", lambda: "abc1234")
    monkeypatch.setattr(sys, "argv", ["/somewhere/wire.py", "--only", "a b"])
    provenance.save("wire.json", rows=[1])
    return tmp_path


def test_a_result_is_older_once_what_it_measured_has_changed(measured: Path):
    page = Page("wire", "Sent?", "Yes.", [Shown(["wire"], ["a"], [["b"]])])
    assert "`python benchmarks/wire.py --only 'a b'`" in str(page)
    assert ", abc1234, " in str(page)
    (measured / "gradwire" / "schedule" / "core.py").write_text("x = 2\n")  # which wire.py does not measure
    assert "Older" not in str(page)
    assert not page.is_older
    (measured / "gradwire" / "runtime" / "core.py").write_text("x = 2\n")
    assert "Older than the code" in str(page)
    assert page.is_older
