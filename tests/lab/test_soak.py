"""Long runs under faults: the same seed draws the same faults, broken laws are seen, and a short run holds them."""

import gc
import json
import os
import socket
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.cli import main
from gradwire.lab.soak.faults import KINDS, Fault, faults, read_kinds
from gradwire.lab.soak.laws import Laws
from gradwire.lab.soak.outcome import Followed
from gradwire.lab.soak.rank_processes import RankProcess
from gradwire.lab.soak.soak import Soak, soaking
from gradwire.lab.soak.soaked_model import BY_CHECKPOINT

pytestmark = pytest.mark.usefixtures("forked_ranks")

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


def broken(*said: dict[str, object], lost: int | None = None) -> list[str]:
    laws = Laws()
    laws.lost = lost
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
    assert "names no rank" in broken({"error": "a rank was lost (closed by peer)", "phase": "training"})[0]


def test_who_was_lost_is_to_be_named_alone():
    one, two = "rank 2 (host b) was lost", "rank 1 (host a), rank 2 (host b) were lost"
    assert broken({"error": one, "phase": "training"}, lost=2) == []
    assert "others than rank 1" in broken({"error": one, "phase": "training"}, lost=1)[0]
    assert "others than rank 2" in broken({"error": two, "phase": "training"}, lost=2)[0]


def test_what_is_loaded_is_to_be_what_was_saved():
    saved = {"step": 3, "saved": True, "job": "j", **KEPT}
    loaded = {"resumed": 3, "loaded": True, "job": "j", **KEPT, "life": "b"}
    assert broken(saved, loaded) == []
    assert "another model than was saved" in broken(saved, {**loaded, "model": "n"})[0]


class DeadlyHost:
    """A host whose ranks have ended before they are told what to do."""

    def __init__(self, *_: object) -> None: ...

    def start(self, name, heard, **_):
        (read, orders), (reports, write) = os.pipe(), os.pipe()
        os.close(read)
        os.close(write)
        rank = RankProcess(name, 0, 0, (orders, reports), heard)
        rank._reader.join()
        return rank

    def close(self) -> None: ...


@pytest.fixture
def deadly(tmp_path, monkeypatch):
    monkeypatch.setattr("gradwire.lab.soak.soak.HostProcess", DeadlyHost)
    with soaking(2, None, 1, tmp_path) as job:
        yield job


def test_a_rank_that_has_ended_holds_no_pipes(deadly: Soak) -> None:
    """A soak of an hour ran out of descriptors."""
    for _ in range(2):
        deadly._start("rank", 0)
    gc.collect()  # descriptors that other tests have left
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(20):
        deadly._start("rank", 0)
    assert len([*Path("/proc/self/fd").iterdir()]) <= before


def test_two_ranks_are_not_two_to_two(deadly: Soak) -> None:
    assert deadly.came.place == "2 ranks over loopback"


def test_the_port_at_which_ranks_meet_is_held(deadly: Soak) -> None:
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind(deadly._address)


def test_an_episode_after_a_broken_law_has_no_more_faults(deadly: Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    """It made up for those that the one before had left."""
    struck: list[int] = []

    def strike(fault: Fault) -> Followed:
        struck.append(deadly._episode)
        if len(struck) == 4:  # a law is broken
            deadly._members.clear()
        deadly.came.faults.append(Followed(fault.kind, "", deadly._episode, "rank 1", 0.0, 0.0, ""))
        return deadly.came.faults[-1]

    monkeypatch.setattr(DeadlyHost, "load", lambda host: None, raising=False)
    monkeypatch.setattr(deadly, "_wait", lambda steps: 0.0)
    monkeypatch.setattr(deadly, "_strike", strike)
    monkeypatch.setattr("gradwire.lab.soak.soak.faults", lambda *drawn: islice(faults(1, KINDS), 20))
    deadly.run(1, [*KINDS], lambda followed: None)
    assert struck == [0] * 4 + [1] * 12 + [2] * 4


def test_a_run_in_which_no_fault_struck_is_no_success(tmp_path, capsys, monkeypatch):
    """It ended with exit code 0, without a word."""
    monkeypatch.setattr("gradwire.lab.soak.soak.HostProcess", DeadlyHost)
    monkeypatch.setattr(DeadlyHost, "load", lambda host: None, raising=False)
    assert main(["soak", "--minutes", "1e-9", "--hosts", "2", "--out", str(tmp_path)]) == 1
    assert "No fault struck in 0.0 minutes: nothing was tested. Give more --minutes." in capsys.readouterr().out


@pytest.mark.long
def test_a_short_run_holds_all_laws(tmp_path, capsys):
    arguments = ["--minutes", "0.2", "--hosts", "3", "--faults", "corrupt,overflow,stop", "--seed", "2"]
    assert main(["soak", *arguments, "--out", str(tmp_path)]) == 0, capsys.readouterr().out
    (folder,) = tmp_path.iterdir()
    came = json.loads((folder / "soak.json").read_text())
    assert came["faults"]
    assert came["broken"] == []
    assert "every law held" in (folder / "report.html").read_text()


@pytest.mark.long
@pytest.mark.parametrize("front_end", BY_CHECKPOINT)
def test_what_ends_where_a_rank_is_lost_begins_again_from_a_checkpoint(front_end, tmp_path, monkeypatch):
    monkeypatch.setattr("gradwire.lab.soak.soak.FRONT_ENDS", (front_end,))
    with soaking(2, None, 1, tmp_path) as job:
        job.run(0.2, ["kill", "overflow"], lambda followed: None)
    log = (tmp_path / "ranks.log").read_text()
    assert job.came.broken == [], log
    assert any("all resumed" in fault.what for fault in job.came.faults if fault.kind == "kill"), log
