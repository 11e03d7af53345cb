"""torch.distributed's store as a `KeyValueStore`, with a time limit for each answer."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch.distributed as dist

from gradwire.torch_private.process_groups import default_store
from gradwire.transports.bounded_calls import on_thread
from gradwire.transports.connections import shut_down_to
from gradwire.transports.forked import FORKED, finalize

T = TypeVar("T")

PATIENCE_S, SHORT_S = 60.0, 5.0
"""How long the store's server may take to answer, and where it is known that something is wrong."""
END_S = 2.0
"""How long to wait for the thread of a question that is ended."""


class TorchStore:
    """`store`, or the one that the default process group was made with; every key begins with `prefix`.

    Its client waits for ever where the server's host is frozen or cut off. So each call runs on a thread of its own,
    and raises RuntimeError where no answer comes in time; so do all later ones, at once, for the client is busy until
    that answer has come after all.
    """

    _silent: ClassVar[WeakSet[Any]] = WeakSet()
    """The stores whose servers owe an answer that is late."""
    _second: ClassVar[WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()
    """The second connection to each store, for all jobs of a process: to open one takes some seconds now and then."""

    def __init__(self, prefix: str, store: Any = None) -> None:
        self._store: Any = store or default_store()
        self._prefix, self._pid = prefix, os.getpid()
        self._patience_s = min(PATIENCE_S, self._store.timeout.total_seconds())

    def second(self) -> "TorchStore":
        """The same keys over a second connection, for threads that poll: on one, a wait holds up all others."""
        second = TorchStore._second.get(self._store)
        if second is None or second in TorchStore._silent:
            second = TorchStore._second[self._store] = self._store.clone()
        return TorchStore(self._prefix, second)

    def set(self, key: str, value: str) -> None:
        self._ask(lambda whole: self._store.set(whole, value), key, self._patience_s)

    def set_all(self, keys: Sequence[str], value: str) -> None:
        """Sets all the keys' texts; one question. `add` goes on from a text that is a number."""
        whole = [f"{self._prefix}/{key}" for key in keys]
        self._ask(lambda _: self._store.multi_set(whole, [value] * len(whole)), "", self._patience_s)

    def first(self, key: str, value: str) -> str:
        """Sets a key's text if it has none; returns its text once it is there, unlike `set`."""
        return self._ask(lambda whole: self._store.compare_set(whole, "", value).decode(), key, SHORT_S)

    def add(self, key: str, number: int) -> int:
        return self._ask(lambda whole: self._store.add(whole, number), key, self._patience_s)

    def check(self, keys: Sequence[str]) -> bool:
        first, *others = keys
        also = [f"{self._prefix}/{key}" for key in others]
        return self._ask(lambda whole: self._store.check([whole, *also]), first, self._patience_s)

    def delete(self, key: str) -> None:
        self._ask(self._store.delete_key, key, self._patience_s)

    def get(self, key: str, timeout_s: float) -> str | None:
        def wait(whole: str) -> str | None:
            return self._store.get(whole).decode() if self._comes(whole, timeout_s) else None

        return self._ask(wait, key, timeout_s + SHORT_S)

    def _comes(self, whole: str, timeout_s: float) -> bool:
        # no waiting: there now, or not
        if not timeout_s:
            return self._store.check([whole])
        # wait for it; only running out of time is no error
        try:
            self._store.wait([whole], timedelta(seconds=timeout_s))
        except dist.DistStoreError:
            return False
        except RuntimeError as error:  # which a file's store raises, too
            if str(error) != "Wait timeout":
                raise
            return False
        return True

    def _ask(self, call: Callable[[str], T], key: str, timeout_s: float) -> T:
        """A call's result for a key. Raises RuntimeError in a forked child, which would read its parent's answers."""
        if self._pid != os.getpid():
            raise RuntimeError(FORKED)
        # ask on another thread, for the client may never come back
        question = partial(call, f"{self._prefix}/{key}")
        if self._store not in TorchStore._silent:
            if not (answer := on_thread(question)):  # the process ends: torch's own timeout has to do
                return question()
            with suppress(TimeoutError):
                return answer.result(timeout_s)
            # no answer: until it comes, later calls would find the client busy
            TorchStore._silent.add(self._store)
            ends = finalize(self._store, _end_question, _server(self._store).port, answer)
            answer.add_done_callback(partial(_heard, self._store, ends))
        raise RuntimeError(f"the store at {_server(self._store).address} does not answer")


def _heard(store: Any, ends: Any, _: Future[Any]) -> None:
    TorchStore._silent.discard(store)
    ends.detach()


def _end_question(port: int | None, answer: Future[Any]) -> None:
    """Ends a question when the process ends: a thread that comes back from torch while Python ends aborts it."""
    if port is not None:
        shut_down_to(port)
        wait([answer], END_S)


class _Server(NamedTuple):
    """The server of a store: its address as errors name it, and its port, which a store in a file has not."""

    address: str
    port: int | None


def _server(store: Any) -> _Server:
    # a prefix's store is another one
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if hasattr(store, "port"):
        return _Server(f"{store.host}:{store.port}", store.port)
    return _Server(type(store).__name__, None)
