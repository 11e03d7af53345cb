"""Words in torch's store."""

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from gradwire.transports import torch_store
from gradwire.transports.torch_store import TorchStore
from tests.support.ranks import ended_ranks, served_store
from tests.support.waiting import wait_until


def server() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)


def test_all_jobs_of_a_process_share_one_second_connection_to_a_store():
    one, other = (server() for _ in range(2))
    first, again = TorchStore("a", one).second(), TorchStore("b", one).second()
    assert first._store is again._store
    assert TorchStore("a", other).second()._store is not first._store
    first.set("word", "of a")
    assert again.get("word", 0) is None
    assert TorchStore("a", one).get("word", 5) == "of a"
    TorchStore._silent.add(first._store)
    assert TorchStore("a", one).second()._store is not first._store  # one that does not answer is not kept


class Late:
    """A store whose server has stopped for a while."""

    timeout = timedelta(seconds=60)

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.asked = 0

    def check(self, keys: list[str]) -> bool:
        self.asked += 1
        return self.goes_on.wait(60)

    def get(self, key: str) -> bytes:
        return b"text"


def answers(store: TorchStore) -> bool:
    with suppress(RuntimeError):
        return store.get("word", 0) == "text"
    return False


def test_a_store_that_was_late_is_asked_again_and_no_other_one_is_called_silent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch_store, "SHORT_S", 0.05)
    late, other = Late(), Late()
    for store in (other, late):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="the store at Late does not answer"):
                TorchStore("a", store).get("word", 0)
        assert store.asked == 1, "the second question would wait behind the first, on one more thread"
    late.goes_on.set()
    assert wait_until(lambda: answers(TorchStore("a", late)))
    with pytest.raises(RuntimeError, match="does not answer"):
        TorchStore("a", other).get("word", 0)
    other.goes_on.set()


ASKS = """
import ctypes, os, signal, sys, time, torch.distributed as dist
from functools import partial
from gradwire.transports import torch_store

port, server = map(int, sys.argv[1:])
store = dist.TCPStore("127.0.0.1", port, is_master=False)
os.kill(server, signal.SIGSTOP)
torch_store.SHORT_S = 0.1
try:
    torch_store.TorchStore("a", store).get("word", 0)
except RuntimeError as error:
    print(error)


class Last:
    def __del__(self, goes_on=partial(os.kill, server, signal.SIGCONT), sleep=time.sleep):
        goes_on()
        sleep(0.5)


sys.last = Last()  # collected when Python has ended most of itself
ctypes.pythonapi.Py_Exit(0)  # as every process ends, but those that tests fork
"""


def test_a_process_ends_well_whose_question_is_answered_when_python_ends():
    """A thread that comes back from torch then aborts the process, after the rank's own error."""
    with served_store() as (server, port):
        (ended,) = ended_ranks(["-c", ASKS, str(port), str(server.pid)], 1)
    assert (ended.code, ended.out) == (0, f"the store at 127.0.0.1:{port} does not answer\n"), ended.err


def test_what_does_not_come_or_was_deleted_is_none_in_a_file_as_well(tmp_path: Path):
    for own in (server(), dist.FileStore(str(tmp_path / "store"), 2)):
        store = TorchStore("a", own)
        assert store.get("absent", 0.05) is None
        store.set("word", "text")
        store.delete("word")
        assert store.get("word", 0) is None


@pytest.mark.parametrize("make", [dist.HashStore, server], ids=["in memory", "of a server"])
def test_questions_about_many_keys_are_one(make: Callable[[], Any]):
    store = TorchStore("a", make())
    store.add("one", 3)
    store.set_all(["one", "two"], "70")
    assert (store.add("one", 1), store.add("two", 1)) == (71, 71), "numbers go on from texts"
    assert store.check(["one", "two"])
    assert not store.check(["one", "three"])
    assert [store.first("four", text) for text in ("b", "c")] == ["b", "b"]
