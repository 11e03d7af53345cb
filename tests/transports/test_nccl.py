"""The transport over NCCL, which is played: works that complete with an error, or block before they are there."""

import gc
import threading
from datetime import timedelta
from types import SimpleNamespace
from weakref import ref

import pytest
import torch
import torch.distributed as dist

import gradwire as gw
from gradwire.collective import Message, Sum


class Group:
    """As torch's group over NCCL, with what the transport asks of it."""

    def __init__(self, rank: int = 0, world: int = 2) -> None:
        self._rank, self._world, self.error = rank, world, "SUCCESS"
        self._device_types = [torch.device("cuda")]
        self.options = SimpleNamespace(_timeout=timedelta(seconds=60))

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._world

    def name(self) -> str:
        return "nccl"

    def _get_backend(self, device: torch.device) -> "Group":
        if device.type != "cuda":
            raise RuntimeError("no backend")
        return self

    def get_error(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.error)


class Work:
    """As NCCL's, whose completion is asked of the GPU that is the thread's own: that makes a context there."""

    def wait(self) -> None:
        pass

    def is_completed(self) -> bool:
        raise AssertionError("a GPU was asked")


class Played(gw.ProcessGroup):
    def start(self, op):
        return Work()


def transports(count: int = 2, kind: type = Played) -> list:
    store = dist.HashStore()
    return [kind(Group(rank, count), "a name", store) for rank in range(count)]


def message() -> Sum:
    return Sum(Message.plain(torch.zeros(1)))


def test_an_error_of_nccl_is_the_reason_why_collectives_will_not_end():
    """As of a host that died. Its works count as complete then."""
    first, _ = transports()
    first.start(message())
    assert first.lost(True) is None
    first._group.error = "COMM_ERROR"
    assert "COMM_ERROR" in first.lost(True)


def test_no_gpu_is_asked_and_no_work_kept():
    first, _ = transports()
    works = [ref(first.start(message())) for _ in range(3)]
    first.lost(True)
    gc.collect()
    assert [work() for work in works] == [None] * 3


class Blocking(Played):
    """Whose first collective makes a communicator, for which all ranks must come."""

    def start(self, op):
        threading.Event().wait()


def test_a_rank_is_missed_by_one_that_is_still_in_a_collectives_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gradwire.transports.process_group.SILENT_S", 0.05)
    first, second = transports(kind=Blocking)
    second.lost(False)
    threading.Thread(target=first.start, args=(message(),), daemon=True).start()
    found = None
    for _ in range(100):
        found = found or first.lost(True)
        threading.Event().wait(0.01)
    assert found == "a rank was lost (1 has given no sign of life for 0 s)"
