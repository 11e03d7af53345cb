"""When a group's threads run where there are more threads than cores."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TASKS = Path("/proc/self/task")


@contextmanager
def in_batch() -> Iterator[None]:
    """Threads that begin inside the `with`, of the group that is made there, wait for their turn when a message wakes
    them: they get Linux' policy SCHED_BATCH. Elsewhere nothing happens.

    gloo's thread, awake for what came over a connection, tries its lock again and again until it gets it. Whoever sends
    over that connection holds the lock, and the answer may come before it lets go. Where both have one core, gloo's
    thread would take it from the sender in the middle of sending, and keep it for a whole time slice, to no avail:
    1 to 4 ms of a step.
    """
    before = set(_threads())
    yield
    for thread in set(_threads()) - before:
        with suppress(OSError):  # it has ended, or a container forbids this
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def _threads() -> list[int]:
    return [int(each.name) for each in TASKS.iterdir()] if TASKS.exists() else []
