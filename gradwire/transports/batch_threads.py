"""Scheduling of a group's threads where there are more threads than cores."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TASKS = Path("/proc/self/task")


@contextmanager
def in_batch() -> Iterator[None]:
    """Gives the threads that begin inside the `with`, those of the group that is made there, Linux' policy SCHED_BATCH,
    by which they wait for their turn when a message wakes them. Elsewhere nothing happens.

    gloo's thread, awake for a message, tries the connection's lock again and again until it gets it. A sending
    thread holds the lock, and the answer may come before it lets go. Where both have one core, gloo's
    thread would take it from the sender in the middle of sending, and spin for a whole time slice: 1 to 4 ms of a step.
    """
    # threads that begin inside belong to the group
    before = set(_threads())
    yield
    # each gets the policy, unless it has ended meanwhile
    for thread in set(_threads()) - before:
        with suppress(OSError):  # it has ended, or a container forbids this
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def _threads() -> list[int]:
    return [int(each.name) for each in TASKS.iterdir()] if TASKS.exists() else []
