"""Calls that may not return in time, such as the end of a communicator that waits for other ranks."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def on_thread(call: Callable[[], T]) -> Future[T] | None:
    """The result to come of a call on a daemon thread of its own. None, and no call, where no thread can start: from
    Python 3.12 on, some versions start none while the process ends."""
    result: Future[T] = Future()
    try:
        Thread(target=_run, args=(result, call), name="gradwire bounded", daemon=True).start()
    except RuntimeError:
        return None
    return result


def run_bounded(calls: Sequence[Callable[[], object]], seconds: float) -> list[Callable[[], object]]:
    """Makes the calls at once, each on a thread of its own, whatever they raise. Returns when all have ended, or after
    so many seconds: those that it has not made, for no thread can start."""
    # one limit for all: threads that are late stay behind as daemons
    results = [on_thread(call) for call in calls]
    wait([result for result in results if result], seconds)
    return [call for call, result in zip(calls, results, strict=True) if not result]


def _run(result: Future[T], call: Callable[[], T]) -> None:
    try:
        result.set_result(call())
    except BaseException as error:
        result.set_exception(error)
    finally:
        del result  # the exception holds this frame, and through it what was called, until a garbage collection
