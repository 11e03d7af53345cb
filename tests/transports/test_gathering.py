"""Ranks that gather before they make a process group, where some come late or not at all."""

import pytest
import torch.distributed as dist

from gradwire.transports import gathering
from gradwire.transports.gathering import meet
from gradwire.transports.torch_store import TorchStore
from tests.support.harness import raising, together


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    monkeypatch.setattr(gathering, "TorchStore", lambda name, _=None: TorchStore(name, store))
    monkeypatch.setattr(gathering, "PATIENCE_S", 1.5)


def call(rank: int) -> str:
    return meet(rank, [0, 1, 2], 60.0)


def test_all_meet_at_a_call_after_one_to_which_a_rank_did_not_come():
    errors = together(2, call)
    assert len({str(error) for error in errors}) == 1
    assert "rank 2 did not come to make a process group" in str(errors[0])
    assert len(set(raising(together(3, call)))) == 1


def test_a_rank_that_comes_when_the_others_have_given_up_does_not_go_on_alone():
    together(2, call)
    with pytest.raises(RuntimeError, match="ranks 0, 1 did not come"):
        call(2)
    assert len(set(raising(together(3, call)))) == 1


def test_torch_warns_once_where_ranks_wait(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    server = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(gathering, "SLICE_S", 0.02)
    with pytest.raises(RuntimeError, match="rank 1 did not come"):
        gathering.gather(TorchStore("warned", server), 0, [0, 1], 60.0)
    assert capfd.readouterr().err.count("timed out after") == 1
