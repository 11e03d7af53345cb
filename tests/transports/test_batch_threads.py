"""The threads of a group of its own wait for their turn, and no others."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch.distributed as dist

import gradwire as gw
from gradwire.transports.batch_threads import TASKS

pytestmark = pytest.mark.skipif(not TASKS.exists(), reason="Linux alone has such a policy for threads")


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def policies() -> dict[str, int]:
    found = {}
    for each in TASKS.iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            found[each.name] = os.sched_getscheduler(int(each.name))
    return found


@pytest.mark.usefixtures("joined")
def test_threads_of_the_group_are_in_batch_and_all_others_as_they_were():
    before = policies()
    transport = gw.ProcessGroup.own()
    after = policies()
    until = time.monotonic() + 10
    while {after[thread] for thread in after.keys() - before} != {os.SCHED_BATCH}:
        # What asked the store for the group's name had its own thread, which may not have ended yet.
        assert time.monotonic() < until
        time.sleep(0.01)
        after = policies()
    transport.close()
    assert all(after[thread] == before[thread] for thread in before.keys() & after.keys())
