"""Figures of scripts that are computed from what was measured, at their edges: one rank, one step, one repeat."""

import sys
from importlib import import_module

import pytest

from benchmarks.losses.training import looks
from benchmarks.steps import streaming
from benchmarks.steps.steps import iqr
from gradwire.lab.network.link import Link

REFUSED = {
    "steps.collectives --ranks 1": "give --ranks 2 or more",
    "steps.checks --blocks 1": "give --blocks 2 or more",
    "scheduler.choices --tasks lstm-sgd --ranks 3": "no curves of lstm-sgd on 3 ranks",
    "faults.killed --kills 0": "give 1 or more: --seeds, --kills",
    "faults.store_operations --ranks 1": "give --ranks 2 or more",
}


@pytest.mark.parametrize("given", REFUSED)
def test_what_gives_no_figure_is_refused_before_anything_is_measured(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    script, *arguments = given.split()
    module = import_module(f"benchmarks.{script}")
    for measures in {"collect", "HostProcess", "processes"} & vars(module).keys():
        monkeypatch.setattr(module, measures, lambda *_: pytest.fail("it measures"))
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with pytest.raises(SystemExit) as refused:
        module.main()
    assert REFUSED[given] in f"{capsys.readouterr().err}{refused.value}"


def test_one_step_has_no_spread():
    assert iqr([0.2]) == 0.0
    assert iqr([1.0, 2.0, 3.0, 4.0]) == pytest.approx(2.5)


@pytest.mark.parametrize("steps", [1, 20, 59, 300, 5000])
def test_a_loss_is_taken_some_thirty_times_and_after_the_last_step(steps: int):
    assert max(looks(steps)) == steps
    assert min(steps, 30) <= len(looks(steps)) <= 60


def test_a_link_that_carries_all_that_it_may_is_never_idle():
    """Its bucket lets so many bytes pass in a second as the kernel counts them, without preambles and gaps."""
    link = Link.parse("10mbit")
    assert streaming.busy_s(link, link.counted_bytes_per_second) == pytest.approx(1.0)
