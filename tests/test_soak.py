"""Long runs under faults: the same seed draws the same faults, broken laws are seen, and a short run holds them."""

import json
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.cli import main
from gradwire.lab.faults import KINDS, faults, read_kinds
from gradwire.lab.soak_laws import Laws

KEPT = {"life": "a", "model": "m", "owed": "o"}


@given(seed=st.integers(0, 1 << 30), kinds=st.lists(st.sampled_from(KINDS), min_size=1, unique=True))
def test_the_same_seed_draws_the_same_faults(seed, kinds):
    drawn = [*islice(faults(seed, kinds), 50)]
    assert drawn == [*islice(faults(seed, kinds), 50)]
    assert {fault.kind for fault in drawn} <= {*kinds}
    assert {fault.kind for fault in drawn if fault.outlasts} <= {"stop"}
    assert drawn != [*islice(faults(seed + 1, kinds), 50)]


def test_kinds_are_read():
    assert read_kinds("kill, stop") == ["kill", "stop"]
    with pytest.raises(ValueError, match="there is no fault 'flood': there are kill"):
        read_kinds("kill,flood")


def broken(*said: dict[str, object]) -> list[str]:
    laws = Laws()
    for words in said:
        laws.hear(words.pop("by", "rank 1"), {**words})
    return laws.broken


def test_laws_that_are_broken_are_told():
    assert broken({"step": 3, **KEPT}, {"by": "rank 2", "step": 3, **KEPT}) == []
    assert (
        "another than other ranks'" in broken({"step": 3, **KEPT}, {"by": "rank 2", "step": 3, **KEPT, "model": "n"})[0]
    )
    again = {"resumed": 3, **KEPT, "life": "b", "owed": "p"}
    assert "another memory" in broken({"step": 3, **KEPT}, {**again, "stayed": True})[0]
    assert broken({"step": 3, **KEPT}, {**again, "stayed": False}) == []
    assert "its memory is lost" in broken({**again, "stayed": False, "late": True})[0]
    assert broken({"error": "rank 2 on host b was lost", "phase": "training"}) == []
    assert "names nobody" in broken({"error": "a rank was lost (closed by peer)", "phase": "training"})[0]


def test_a_short_run_holds_all_laws(tmp_path, capsys):
    arguments = ["--minutes", "0.3", "--hosts", "3", "--faults", "corrupt,overflow,stop", "--seed", "2"]
    assert main(["soak", *arguments, "--out", str(tmp_path)]) == 0, capsys.readouterr().out
    (folder,) = tmp_path.iterdir()
    came = json.loads((folder / "soak.json").read_text())
    assert came["faults"]
    assert came["broken"] == []
    assert "every law held" in (folder / "report.html").read_text()
