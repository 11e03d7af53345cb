"""The script for one GPU, tried on a CPU: its sections in small, and that a crash loses nothing."""

import argparse
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gradwire as gw
from benchmarks.gpu import gpu
from benchmarks.gpu.device import Device
from benchmarks.gpu.jobs import SLOTS, Synchronised
from benchmarks.gpu.models import Model, model_of
from benchmarks.gpu.rows import MARKS, Rows, read
from benchmarks.gpu.sections import SECTIONS, steps
from benchmarks.gpu.sections.steps import Way
from benchmarks.gpu.shown import Tables, shown_as_they_come
from benchmarks.gpu.trainings import Times
from benchmarks.shared.provenance import CALLED
from gradwire.lab.network import nsenter
from tests.support.harness import draw, job, plan_of
from tests.support.warm import program

SHORT = ("kernels", "versions", "memory")


@pytest.mark.parametrize(
    "section", [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in SECTIONS]
)
@pytest.mark.filterwarnings("ignore")
def test_a_section_runs_in_small(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.setenv("GRADWIRE_GRAPHS", "1")
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    module = import_module(f"benchmarks.gpu.sections.{SECTIONS[section].module or section}")
    if hasattr(module, "subprocess"):
        monkeypatch.setattr(module, "subprocess", Forking)
    module.run(Rows(tmp_path, section, 300), Device(torch.device("cpu"), tiny=True))
    rows = [row for row in read(tmp_path) if row["kind"] not in MARKS]
    assert rows
    assert not [row for row in rows if row["kind"] in ("failed", "left out") or row.get("ok") is False]


class Forking:
    """Replaces the module `subprocess` in a section: its processes are forked from the warm Python."""

    PIPE, STDOUT = subprocess.PIPE, subprocess.STDOUT

    @staticmethod
    def Popen(command: list[str], **options: Any) -> subprocess.Popen:
        return program(*command[1:], **options)

    @staticmethod
    def run(command: list[str], timeout: float, **_: Any) -> subprocess.CompletedProcess:
        with program(*command[1:], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(command, process.returncode, out, err)


class Event:
    """An event of a GPU that is done at once."""

    def __init__(self, **options: Any) -> None:
        self.at_ms = 0.0

    def record(self, *streams: Any) -> None:
        self.at_ms = 1e3 * time.perf_counter()

    def elapsed_time(self, end: "Event") -> float:
        return end.at_ms - self.at_ms

    def synchronize(self) -> None: ...


class Stream:
    """A stream of a GPU that is always done."""

    record_event = staticmethod(Event)

    def wait_event(self, event: Event) -> None: ...


class Graphs:
    """Computes while it records."""

    def record(self, turn: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        return lambda: None, turn()


@pytest.fixture
def gpu_of_stubs(monkeypatch: pytest.MonkeyPatch) -> Device:
    """What the script does on a GPU alone, done on the CPU."""
    calls = "synchronize", "empty_cache", "set_sync_debug_mode", "reset_peak_memory_stats"
    for name in calls:
        monkeypatch.setattr(torch.cuda, name, lambda *args: None)
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda: 1)
    for name, stub in {"Event": Event, "Stream": Stream, "current_stream": Stream}.items():
        monkeypatch.setattr(torch.cuda, name, stub)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr("benchmarks.gpu.device.delay", lambda seconds, device: None)
    monkeypatch.setattr(Device, "is_gpu", True)
    monkeypatch.setattr(Device, "kernels", lambda self, run: [(f"a_kernel<{run()}>", 1.0)])
    monkeypatch.setattr(import_module("benchmarks.gpu.sections.kernels"), "CUDAGraphs", Graphs)
    return Device(torch.device("cpu"), tiny=True)


@pytest.mark.parametrize("section", ["kernels", "memory"])
@pytest.mark.filterwarnings("ignore")
def test_what_is_done_on_a_gpu_alone_has_no_mistake_that_stubs_show(
    section: str, gpu_of_stubs: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.optim, "AdamW", lambda parameters, lr, fused: torch.optim.SGD(parameters, lr))
    import_module(f"benchmarks.gpu.sections.{section}").run(Rows(tmp_path, section, 300), gpu_of_stubs)
    rows = [row for row in read(tmp_path) if row["kind"] not in MARKS]
    assert rows
    assert not [row for row in rows if row["kind"] in ("failed", "left out")]


def test_ranks_of_threads_wait_for_each_others_streams(gpu_of_stubs: Device):
    with job(
        plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.ScatterReduce()), SLOTS, 3, transports=Synchronised.group(3)
    ) as ranks:
        assert all(torch.equal(*both) for both in zip(*ranks.step(draw(SLOTS, 3, 0))[:2], strict=True))
        came = ranks.transports[0].came.events
        assert [len(events) for events in came.values()] == [3] * len(came)


def test_an_error_is_a_row_and_the_next_process_goes_on_behind_it(tmp_path: Path, capfd: pytest.CaptureFixture):
    rows = Rows(tmp_path, "waits", 60)
    for name in rows.each(["good", "bad", "later"]):
        if name == "later":
            break  # as in a crash
        with rows.attempt(name):
            assert name == "good", f"{name} it is"
            rows.add("found", what=name, ok=True)
    assert list(Rows(tmp_path, "waits", 60).each(["good", "bad", "later"])) == ["later"]
    Tables(tmp_path).show("waits")
    shown, kept = capfd.readouterr().out, (tmp_path / "tables.md").read_text()
    assert "AssertionError: bad it is" in shown
    assert "| good" not in shown
    assert "| good | True |" in kept
    assert Tables(tmp_path).summary() == "1 FAILED, 1 right; 0 left out"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Measures trainings that take no time; calls `at_b` where b's is made."""

    class Made:
        card, recorded, loss = SimpleNamespace(), "", 0.0
        at_b: Callable[[], Any]

        def __init__(self, device: Device, model: Model, name: str, **_: Any) -> None:
            if name == "b":
                Made.at_b()

        def warm_up(self) -> None: ...

        def timed(self, seconds: float) -> Times:
            return Times(1.0, 1.0, 1.0)

        def close(self) -> None: ...

    def measure(rows: Rows, at_b: Callable[[], Any]) -> None:
        Made.at_b = at_b
        steps.measure(rows, Device(torch.device("cpu"), tiny=True), model_of("bert"), THREE)

    monkeypatch.setattr(steps, "Training", Made)
    return measure


THREE = [Way("a"), Way("b"), Way("c")]


def test_a_crash_takes_no_training_that_was_to_be_measured_later(tmp_path: Path, measured: Callable[..., None]):
    with pytest.raises(SystemExit):
        measured(Rows(tmp_path, "bert", 60), sys.exit)
    assert list(Rows(tmp_path, "bert", 60).each(THREE)) == [Way("a"), Way("c")]
    measured(Rows(tmp_path, "bert", 60), sys.exit)
    assert list(Rows(tmp_path, "bert", 60).each(THREE)) == []


def test_where_trainings_take_long_to_make_those_that_are_there_are_measured(
    tmp_path: Path, measured: Callable[..., None]
):
    rows = Rows(tmp_path, "bert", 60)
    measured(rows, lambda: setattr(rows, "_end", time.monotonic()))
    assert {row["what"] for row in read(tmp_path) if row["kind"] == "steps"} == {steps.NONE, "a", "b"}
    assert [row["what"] for row in read(tmp_path) if row["kind"] == "left out"] == ["c and after it"]


def test_parts_share_the_rows_and_stop_when_the_time_is_over(tmp_path: Path):
    parts = [list(Rows(tmp_path, "waits", 60, part, 2).each("abcde")) for part in range(2)]
    assert parts == [["a", "c", "e"], ["b", "d"]]
    assert list(Rows(tmp_path, "waits", 0).each("ab")) == []
    assert Tables(tmp_path).summary() == "0 FAILED, 0 right; 1 left out"


class Crashing:
    """A process that crashes, twice after it has begun a row, then at once."""

    runs = 0

    def __init__(self, section: str, part: int, arguments: argparse.Namespace) -> None:
        self.section, self.part, self._rows = section, part, Rows(arguments.out, section, 60)

    def run(self, seconds: float) -> bool:
        Crashing.runs += 1
        if Crashing.runs <= 2:
            self._rows.add("begun", what=str(Crashing.runs))
        return False

    def leave_out(self, why: str) -> None:
        self._rows.add("left out", what="the rest", why=why)


def test_a_section_that_crashes_begins_anew_as_long_as_it_gets_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "Process", Crashing)
    arguments = argparse.Namespace(out=tmp_path)
    gpu.run(Crashing("waits", 0, arguments), 60, arguments)  # pyright: ignore
    assert Crashing.runs == 3
    assert [row["kind"] for row in read(tmp_path)] == ["begun", "begun", "left out"]


def test_a_section_has_less_time_where_its_imports_took_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["sections", "native", "0", str(tmp_path), "cpu", "tiny"])
    monkeypatch.setattr(sys, "stdin", StringIO(f"{time.monotonic() + 3}\n"))
    scripts = list[int]()
    monkeypatch.setattr(nsenter, "die_with", scripts.append)
    runpy.run_module("benchmarks.gpu.sections", run_name="__main__")
    assert [row["kind"] for row in read(tmp_path)] == ["left out"]
    # one that is cut off leaves nothing on the GPU
    assert scripts == [os.getppid()]


def test_rows_are_printed_as_they_come_but_for_those_that_are_right(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    rows = Rows(tmp_path, "cupcake", 60)
    rows.add("set-up", gbit=10.0)
    with shown_as_they_come(tmp_path):
        rows.add("begun", what="dense")
        rows.add("steps", **{"what": "dense", "of none": 1.2345})
        rows.add("checked", ok=True)
        rows.add("checked", ok=False)
    assert capfd.readouterr().out.splitlines() == [
        "cupcake: steps: what dense, of none 1.23",
        "cupcake: checked: ok False",
    ]


def test_the_versions_are_kept_where_the_kernels_trial_ends_the_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    versions = import_module("benchmarks.gpu.sections.versions")
    monkeypatch.setattr(versions, "in_use", lambda: 1 / 0)
    versions.run(Rows(tmp_path, "versions", 60), Device(torch.device("cpu"), tiny=True))
    assert [row["kind"] for row in read(tmp_path)] == ["versions", "begun", "failed"]


def test_a_folder_with_rows_of_a_section_is_not_shown_as_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    Rows(tmp_path, "versions", 60).add("versions")
    given = ["--only", "versions", "--minutes", "0", "--device", "cpu", "--tiny", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["gpu.py", *given])
    monkeypatch.setenv(CALLED, "")
    with pytest.raises(SystemExit, match="has rows of another run: name a new folder"):
        gpu.main()


def test_sections_that_time_nothing_run_at_once():
    assert gpu.turns_of(["waits", "bert", "nccl", "memory"]) == [["waits", "nccl"], ["bert"], ["memory"]]
    with pytest.raises(SystemExit, match="no section 'best'"):
        gpu.turns_of(["best"])
