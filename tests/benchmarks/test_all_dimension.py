"""The script that compares rows with top-k: what rows are, equal bytes, and all of its runs on tiny steps."""

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.losses import all_dimension
from benchmarks.losses.all_dimension import DEFAULT, IN_CODE, runs_of
from benchmarks.losses.fidelity import Setting
from benchmarks.losses.row_selection import VALUE_AND_PLACE, Run, Selection, Worker, rows_of
from benchmarks.shared import provenance
from gradwire.lab.workloads import LanguageModel
from gradwire.ops.entries import Entries

SHAPES = [torch.Size(shape) for shape in ((16, 8, 3, 3), (40, 300), (300, 20))]


@pytest.mark.parametrize("cut", ["longer", "shorter", "code", "tensor"])
def test_rows_have_each_element_once(cut: str):
    for shape in SHAPES:
        assert rows_of(shape, cut).flatten().sort().values.equal(torch.arange(shape.numel()))


def test_rows_are_cut_as_they_are_called():
    assert [tuple(rows_of(shape, "longer").shape) for shape in SHAPES] == [(16, 72), (40, 300), (20, 300)]
    assert [tuple(rows_of(shape, "code").shape) for shape in SHAPES] == [(144, 8), (40, 300), (300, 20)]
    # one kernel position of one output: its input channels
    assert rows_of(SHAPES[0], "code")[0].tolist() == list(range(0, 72, 9))


@pytest.mark.parametrize("ratio", [0.1, 0.01, 0.001])
def test_top_k_has_as_many_bytes_as_rows(ratio: float):
    x = torch.randn(sum(shape.numel() for shape in SHAPES))
    rows, whole = (Selection(run, SHAPES) for run in (Run(ratio=ratio), Run(ratio=ratio).beside))
    size = VALUE_AND_PLACE * len(rows(x, 0))
    sent = [Entries(len(x), len(whole(x, 0)) + more, 32).nbytes for more in (0, 1)]
    assert sent[0] <= size < sent[1] + 4


def test_every_row_sends_its_largest():
    at = Selection(Run(ratio=0.001), [torch.Size((2, 3))])(torch.tensor([1.0, -3, 2, 5, 6, -7]), 0)
    assert sorted(at.tolist()) == [1, 5]


@pytest.mark.parametrize("run", [Run(), Run(turns="exact"), Run(turns="reused")], ids=str)
def test_what_is_not_sent_is_left(run: Run):
    worker = Worker(Selection(run, SHAPES))
    gradients = torch.randn(8, worker.select.n)
    sent = sum(worker.send(gradient, step) for step, gradient in enumerate(gradients))
    torch.testing.assert_close(worker.left + sent, gradients.sum(0))


def test_the_runs_of_a_task_on_tiny_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    task = LanguageModel(model="lstm", width=4, layers=1, context=4, batch=1, max_bytes=2_000)
    monkeypatch.setattr(all_dimension, "TASKS", {"cnn-sgd": Setting(lambda: task, "sgd", 0.1, (0.1,))})
    monkeypatch.setattr(all_dimension, "PUBLISHED", ("lstm",))
    cells = [DEFAULT, IN_CODE, "DGC's memory"]
    # a cell of which dense, to compare with, is not trained yet; then all
    for some in ([IN_CODE], cells):
        monkeypatch.setattr(
            sys, "argv", ["all_dimension.py", "--steps", "4", "--seeds", "0", "--cells", ";".join(some)]
        )
        all_dimension.main()
    runs = json.loads((tmp_path / all_dimension.FILE).read_text())["runs"]
    assert len(runs) == len({run for name in cells for run in runs_of(name)})
    shown = capsys.readouterr().out
    assert not [name for name in cells if f"| {name} |" not in shown]
    # what is known is not trained again
    monkeypatch.setattr(all_dimension, "train", lambda *_: pytest.fail("trained again"))
    all_dimension.main()
