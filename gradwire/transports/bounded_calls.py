"""Calls that may not return in time, such as the end of a communicator that waits for other ranks."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from time import monotonic


def run_bounded(calls: Sequence[Callable[[], object]], seconds: float) -> None:
    """Makes the calls at once, each on a thread of its own, whatever they raise. Returns when all have ended, or after
    so many seconds."""
    threads = [Thread(target=_run, args=(call,), name="gradwire bounded", daemon=True) for call in calls]
    until = monotonic() + seconds
    # one limit for all: threads that are late stay behind as daemons
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - monotonic()))


def _run(call: Callable[[], object]) -> None:
    with suppress(Exception):
        call()
