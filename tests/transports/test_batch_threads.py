"""The threads of a group of its own wait for their turn, and no others."""

import os
from contextlib import suppress

import pytest

import gradwire as gw
from gradwire.transports.batch_threads import TASKS
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not TASKS.exists(), reason="Linux alone has such a policy for threads")


def policies() -> dict[str, int]:
    found = {}
    for each in TASKS.iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            found[each.name] = os.sched_getscheduler(int(each.name))
    return found


@pytest.mark.usefixtures("one_rank")
def test_threads_of_the_group_are_in_batch_and_all_others_as_they_were():
    before = policies()
    transport = gw.ProcessGroup.own()

    def new() -> set[int]:
        return {policy for thread, policy in policies().items() if thread not in before}

    # what asked the store for the group's name had its own thread, which may not have ended yet
    assert wait_until(lambda: new() == {os.SCHED_BATCH})
    after = policies()
    transport.close()
    assert all(after[thread] == before[thread] for thread in before.keys() & after.keys())
