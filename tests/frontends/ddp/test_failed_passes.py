"""DDP's buckets after a backward pass that failed."""

from types import SimpleNamespace
from typing import Any

from gradwire.frontends.ddp.buckets import Buckets
from gradwire.frontends.paused import Accumulated


def test_a_step_begins_without_the_gradients_of_a_pass_that_failed():
    runtime: Any = SimpleNamespace(wants_readiness=lambda: False)
    ddp: Any = SimpleNamespace(static_graph=False)
    buckets = Buckets(runtime, {}, ddp, Accumulated())
    for slot in range(2):
        buckets.begin()
        buckets.seen.add(slot)
    assert buckets.seen == {1}
