"""Losses among many ranks on one store that takes long to answer, and their meeting, by a played clock."""

import pytest

from benchmarks.faults.played_store import Clock
from benchmarks.faults.simulated_loss import simulated_loss
from benchmarks.faults.store_operations import simulated
from gradwire.runtime.failures import failure_verdict

RANKS = 512
ANSWER_S = 200e-6 * 4096 / RANKS
"""As busy as with 4,096 ranks at 200 us a question."""


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not what other tests of this process have set."""
    monkeypatch.setattr(failure_verdict, "OTHERS_S", 2.0)
    monkeypatch.setattr(failure_verdict, "POLL_S", 0.05)


@pytest.mark.parametrize(("dead", "step_s"), [({170}, 0.0), ({170}, 60.0), ({0}, 0.0), ({511}, 0.0)])
def test_all_name_a_dead_rank_within_15_s_and_no_living_one(dead: set[int], step_s: float):
    loss = simulated_loss(RANKS, ANSWER_S, step_s, dead)
    assert loss.said == {f"reducing ended: rank {min(dead)} was lost"}
    assert len(loss.named_s) == RANKS - 1
    assert max(loss.named_s) < 15
    assert loss.asked < 10 * RANKS


def test_a_host_that_dies_is_named_and_no_living_rank():
    loss = simulated_loss(RANKS, ANSWER_S, dead=range(96, 104))
    assert loss.said == {f"reducing ended: {', '.join(f'rank {rank}' for rank in range(96, 104))} were lost"}
    assert max(loss.named_s) < 18


def test_the_ranks_of_a_simulated_meeting_meet():
    found = simulated(64)
    assert 3 <= found["meeting"] <= 20
    assert 0 < found["met_s"] < 60


def test_what_a_simulated_rank_raises_ends_the_simulation_though_others_wait():
    clock = Clock()

    def waits() -> None:
        while True:
            clock.sleep(1.0)

    with pytest.raises(ZeroDivisionError):
        clock.run([waits, lambda: 1 / 0])
