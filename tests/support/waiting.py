"""Waiting for what other threads and processes do."""

from collections.abc import Callable
from time import monotonic, sleep


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> bool:
    """Whether a condition has come true in time."""
    until = monotonic() + seconds
    while not (true := condition()) and monotonic() < until:
        sleep(0.005)
    return bool(true)
