"""Gradients of DDP that come bucket by bucket, as on a GPU, where no hooks see them."""

from functools import wraps
from unittest import mock

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.frontends.ddp.ddp_front_end import DDPFrontEnd
from gradwire.torch_private.autograd import has_gradient_hooks
from tests.processes import layers, parameters, scenarios
from tests.processes.scenarios import SCENARIOS, batch, network, scenario, train
from tests.support.states import earlier

AGAIN = [
    scenarios.what_is_accumulated_counts_while_native_plans_come_and_go,
    scenarios.accumulation_sends_the_sum_once,
    scenarios.unused_parameters_are_as_in_ddp,
    scenarios.views_static_graph_and_checkpointing_are_plain_ddp_at_fp32,
    scenarios.uneven_inputs_end_with_join,
    scenarios.a_step_that_is_skipped_leaves_no_trace,
    scenarios.backward_passes_that_are_paused_leave_no_trace,
    scenarios.micro_batches_that_were_not_sent_are_not_skipped_by_taking_back_the_step_before,
    scenarios.a_backward_that_failed_on_all_ranks_leaves_no_trace,
    scenarios.layers_that_are_frozen_and_thawed_train_as_with_plain_torch,
    parameters.steps_begin_where_gradients_do_however_ddp_is_called,
    parameters.gradients_that_ddp_copies_together_are_sent_when_they_are_in_their_bucket,
    layers.sparse_gradients_follow_what_a_step_may_be,
]
see_gradients = DDPFrontEnd._see_gradients


def see_buckets(self: DDPFrontEnd, runtime, buckets) -> None:
    """As on a GPU whose buckets have stayed, and nothing asks when a gradient is ready."""
    with (
        mock.patch.object(runtime, "is_immediate", False),
        mock.patch.object(runtime, "wants_readiness", return_value=False),
        mock.patch.object(buckets, "fixed", True),
    ):
        see_gradients(self, runtime, buckets)


def by_bucket(function):
    @wraps(function)
    def run() -> None:
        with mock.patch.object(DDPFrontEnd, "_see_gradients", see_buckets):
            function()

    run.__name__, run.__module__ = f"{function.__name__}_bucket_by_bucket", __name__
    return run


for function in AGAIN:
    _, worlds, long = SCENARIOS[function.__name__]
    scenario(*worlds, long=long)(by_bucket(function))


@scenario(3)
def gradients_that_come_bucket_by_bucket_train_bit_for_bit_as_one_by_one() -> None:
    one_by_one, hooked = trained()
    with mock.patch.object(DDPFrontEnd, "_see_gradients", ahead):
        by_bucket, left = trained()
    assert hooked
    assert not left
    assert [name for name in one_by_one if not torch.equal(one_by_one[name], by_bucket[name])] == []


def ahead(self: DDPFrontEnd, runtime, buckets) -> None:
    """As on a GPU."""
    with mock.patch.object(runtime, "is_immediate", False):
        see_gradients(self, runtime, buckets)


def trained() -> tuple[dict[str, Tensor], bool]:
    """Parameters and memories after micro-batches, a trace, a step taken back and a native plan, in groups that lie
    across buckets; and whether hooks see each gradient in the end."""
    ddp = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    handle = gw.attach(ddp, gw.TopK(0.1), memory=gw.Residual(), groups=gw.groups.of(count=2))
    train(ddp, 6)
    with handle.accumulate():
        ddp(batch(6)[0]).square().mean().backward()
    train(ddp, 4, first=7)
    handle.trace(2)
    train(ddp, 4, first=11)
    ddp(batch(15)[0]).square().mean().backward()
    handle.skip()
    compressed = handle.plan
    assert compressed is not None
    for plan in (gw.NATIVE, compressed):
        handle.replan(plan)
        train(ddp, 6, first=16)
    hooks = any(map(has_gradient_hooks, ddp.parameters()))
    memories = {name: kept for name, kept in earlier(handle.state_dict()).items() if isinstance(kept, Tensor)}
    return {**ddp.state_dict(), **memories}, hooks
