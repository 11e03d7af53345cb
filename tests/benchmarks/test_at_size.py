"""The script for losses at size, tried on a CPU with a small model."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch

from benchmarks.gpu import processes
from benchmarks.gpu.device import Device
from benchmarks.gpu.rows import ROWS, Rows, read
from benchmarks.losses import at_size
from benchmarks.losses.size import text
from benchmarks.losses.size.model import TINY
from benchmarks.losses.size.process import have_written
from benchmarks.losses.size.ranks import RANKS
from benchmarks.losses.size.training import RISE, Training, batches, evaluated_at, rate_at
from benchmarks.losses.size.ways import WAYS
from benchmarks.shared import provenance
from tests.benchmarks.test_gpu import Forking

SHORT = ("dense", "topk-16-int8", "dion", "sparseloco")
WITHOUT_MEMORY = ("dense", "diloco", "sparseloco")
BYTES = {"dense": (6.0, 6.0), "diloco": (0.19, 0.21), "sparseloco": (0.003, 0.01), "dion": (1.0, 4.0)}
"""The least and the most of a parameter and step; of the others up to 1."""


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    text.write(folder, 40_000, TINY.words)
    return folder


def test_texts_differ_and_come_in_the_same_order_again():
    texts = list(text.distinct(300_000))
    assert len(set(texts)) == len(texts) > 1
    assert texts == list(text.distinct(300_000))
    assert 300_000 <= sum(len(each.encode()) for each in texts) <= 300_000 + text.LARGEST


def test_without_a_tokenizer_bytes_are_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text, "find_spec", lambda name: None)
    found = text.write(tmp_path, 40_000, TINY.words)
    train = numpy.load(tmp_path / text.TRAIN)
    assert found["vocabulary"] == 256
    texts = list(text.distinct(10_000_000))[1:]
    assert bytes(train.astype(numpy.uint8)).decode().startswith(texts[0])


@pytest.mark.parametrize("name", [n if n in SHORT else pytest.param(n, marks=pytest.mark.long) for n in WAYS])
def test_a_configuration_learns_and_sends_what_it_says(name: str, tokens: Path):
    run = Training(WAYS[name], tokens, Device(torch.device("cpu")), TINY, rate=1e-2)
    before = run.evaluate()
    row, facts = run.curve_row(run.steps(30, of=30)), run.ranks.facts()
    after = run.evaluate()
    run.ranks.close()
    assert after < before
    assert facts["means equal"]
    least, most = BYTES.get(name, (0.1, 1.0))
    assert least <= row["bytes a parameter"] <= most
    if name not in WITHOUT_MEMORY:
        assert facts["residual"] > 0


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes of the script are forked from the warm Python."""
    with monkeypatch.context() as patched:
        patched.setattr(processes, "subprocess", Forking)
        yield


def test_all_train_as_many_steps_at_once_and_the_result_is_kept(
    forking: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    given = ["--only", "dense,topk-16", "--steps", "100", "--device", "cpu", "--tiny", "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["at_size.py", *given])
    for name in (provenance.CALLED, "OMP_NUM_THREADS"):  # which the script sets
        monkeypatch.setenv(name, "")
    at_size.main()
    rows = read(tmp_path / "run")
    assert not [row for row in rows if row["kind"] in ("failed", "left out")]
    # in whichever order they ended
    losses = {row["section"]: row for row in rows if row["kind"] == "losses"}
    dense, sparse = losses.pop("dense"), losses.pop("topk-16")
    assert not losses
    assert dense["step"] == sparse["step"] == 90
    residuals = {row["section"]: row["residual"] for row in rows if row["kind"] == "ranks"}
    assert residuals["topk-16"] > 0 == residuals["dense"]
    assert dense["bytes a parameter"] > 20 * sparse["bytes a parameter"]
    assert dense["held_out"] != sparse["held_out"]
    shown = capfd.readouterr().out
    assert "dense: held out: step 90, loss" in shown
    assert "| TopK 1/16 in 10 bits |" in shown
    assert "no result" not in shown
    # a second run would mix its rows with these
    with pytest.raises(SystemExit, match="name a new folder"):
        at_size.main()
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    monkeypatch.setattr(at_size, "commit_of", lambda sources: "abcdef0")
    monkeypatch.setattr(sys, "argv", ["at_size.py", *given, "--keep"])
    at_size.main()
    kept = json.loads((tmp_path / "at_size.json").read_text())
    assert kept["commit"] == "abcdef0"
    assert [row["step"] for row in kept["held out"] if row["section"] == "dense"] == [60, 90]
    assert kept["steps"]["steps"] == 90
    assert "| TopK 1/16 in 10 bits |" in capfd.readouterr().out


def test_a_run_that_was_cut_off_before_any_configuration_ended_has_nothing_to_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It was a ValueError where there was no row of the steps yet, and else a result without losses."""
    monkeypatch.setattr(sys, "argv", ["at_size.py", "--out", str(tmp_path), "--keep"])
    for kind in ("versions", "text", "steps", "curve"):
        Rows(tmp_path, "dense", 60).add(kind)
        with pytest.raises(SystemExit, match="has nothing to keep: no configuration came to its end"):
            at_size.main()


def test_a_row_that_another_process_is_writing_is_read_later(tmp_path: Path):
    Rows(tmp_path, "dense", 60).add("ready")
    with (tmp_path / ROWS).open("a") as file:
        file.write('{"section": "topk-16", "ki')
    assert [row["section"] for row in read(tmp_path)] == ["dense"]


class Waiting:
    """A process that writes nothing, and has ended or not."""

    def __init__(self, section: str, runs: bool) -> None:
        self.section, self.runs, self.end = section, runs, ""

    def leave_out(self, why: str) -> None:
        self.end = why

    def ends_within(self, seconds: float) -> None:
        self.end = "failed"


def test_what_is_late_or_has_crashed_keeps_no_other_waiting(tmp_path: Path):
    Rows(tmp_path, "there", 60).add("ready")
    all_of_them = there, late, crashed = Waiting("there", True), Waiting("late", True), Waiting("crashed", False)
    assert have_written(all_of_them, "ready", tmp_path, 0.0) == [there]  # pyright: ignore[reportArgumentType]
    assert (there.end, late.end, crashed.end) == ("", "not ready in time", "failed")


def test_a_run_that_was_cut_is_no_result():
    rows = [{"kind": "curve", "step": 200}, {"kind": "failed", "error": "killed when its time was over"}]
    for row, why in zip(rows, ["as all was cut off", "killed when its time was over"], strict=True):
        shown = at_size.table([{"section": "acpsgd", **each} for each in (rows[0], row)])
        assert f"no result: it ended at step 200, {why}" in shown


def test_the_slowest_decides_on_the_number_of_steps():
    assert at_size.fitting(1500, 0.1, 1000.0) == 1500
    assert at_size.fitting(1500, 0.5, 400.0) == 750
    assert at_size.fitting(1500, 0.0, 400.0) == 0


def test_the_rate_does_not_depend_on_the_number_of_steps_before_that_is_known():
    assert [rate_at(step, 0) for step in (0, 49, RISE - 1)] == [0.01, 0.5, 1.0]
    assert rate_at(RISE, 1500) == 1.0
    assert rate_at(1500, 1500) == pytest.approx(0.1)
    assert evaluated_at(1500) == {480, 990, 1500}


def test_every_window_comes_once_then_again():
    size = TINY._replace(context=4, batch=2)
    drawn = batches(torch.arange(4 * 16 + 1), size)
    steps = [next(drawn) for _ in range(4)]
    starts = [int(window[0]) for step in steps for rank in step for window in rank]
    assert all(rank.shape == (2, 5) for step in steps for rank in step)
    assert len(steps[0]) == RANKS
    assert sorted(starts[:16]) == sorted(starts[16:]) == list(range(0, 64, 4))
    assert starts[:16] != starts[16:]


def test_a_text_that_is_too_short_is_refused():
    with pytest.raises(ValueError, match="100 tokens are too few for 4 x 4 windows of 32"):
        next(batches(torch.arange(100), TINY))
