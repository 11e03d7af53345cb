"""The benchmarks' pages are what the generator makes of the results, and say what is older than the code."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import provenance
from document import FOLDER, pages
from fault_questions import FAULTS
from page import Page, Shown
from questions import QUESTIONS
from systems import SYSTEMS

MARKS = re.compile(r" \(older\)|\| (?:older|this) \|")


def test_what_is_committed_is_what_the_generator_makes():
    """But for the marks, which follow the code: `make benchmarks` and `make docs` set them."""
    committed = {path: MARKS.sub("", path.read_text()) for path in FOLDER.glob("*.md")}
    assert committed == {path: MARKS.sub("", text) for path, text in pages().items()}, "run `make benchmarks`"


def test_every_result_says_where_it_comes_from():
    for path in provenance.RESULTS.glob("*.json"):
        found = provenance.load(path.stem)
        assert {"date", "commit", "machine", "command"} <= found.keys(), path
        assert (provenance.ROOT / found["command"].split()[1]).exists(), found["command"]


def test_everything_is_read_in_minutes():
    """A word has a letter or a digit. Prose is all outside of tables: questions, verdicts, notes and origins."""
    lines = [line for text in pages().values() for line in text.splitlines()]
    assert _words(line for line in lines if not line.startswith("|")) <= 1300
    assert _words(lines) <= 2900


def test_no_result_is_kept_that_no_page_shows():
    """Pages are those here and the written ones, which name their results."""
    written = "".join(path.read_text() for path in (provenance.ROOT / "docs").glob("*.md"))
    shown = {name for make in (*QUESTIONS, *FAULTS, *SYSTEMS) for table in make().tables for name in table.results}
    found = {path.stem for path in provenance.RESULTS.glob("*.json")}
    assert not [name for name in found - shown if f"results/{name}.json" not in written]


def _words(lines: Iterable[str]) -> int:
    return sum(any(map(str.isalnum, word)) for line in lines for word in line.replace("|", " ").split())


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
    assert "older" not in str(page)
    assert not page.is_older
    (measured / "gradwire" / "runtime" / "core.py").write_text('"""One."""\n\nx = 1  # not two\n"""Of what."""\n')
    assert not page.is_older
    (measured / "gradwire" / "runtime" / "core.py").write_text("x = 2\n")
    assert "(older)" in str(page)
    assert page.is_older


def test_losses_are_no_older_than_code_that_trains_alike_but_times_are(measured: Path):
    def result(command: str, measured: str) -> dict[str, str]:
        return {"command": f"python benchmarks/{command}", "code": measured}

    now = provenance.code("fidelity")
    pairs = [{"of": "first", "is": "second"}, {"of": "second", "is": now}, {"of": "other", "is": "third"}]
    provenance.save("equal.json", pairs=pairs)
    for command, age, older in [
        ("fidelity.py", now, False),
        ("fidelity.py --steps 1500", "first", False),
        ("choices.py --curves", "second", False),
        ("fidelity.py", "other", True),
        ("choices.py", "second", True),
    ]:
        assert provenance.is_older(result(command, age)) == older
