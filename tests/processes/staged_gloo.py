"""Tensors of a GPU, which is pretended, between real processes over gloo."""

from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

import gradwire as gw
from gradwire.transports import staged
from tests.processes.scenarios import scenario
from tests.support.every_collective import WORLD, collectives
from tests.support.pretend_cuda import GPU, on_gpu, pretended_cuda, real


@scenario(WORLD)
def every_collective_brings_a_gpu_what_it_brings_the_host() -> None:
    for level in (dist.DebugLevel.OFF, dist.DebugLevel.DETAIL):
        dist.set_debug_level(level)
        group = gw.ProcessGroup.own()
        for n in (1, 5, 4097):
            expected = received(group, n, torch.clone)
            with mock.patch.object(staged, "Copied"), pretended_cuda():
                group.check(GPU)
                found = received(group, n, on_gpu)
            for ours, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(real(ours), theirs, rtol=0, atol=0)
        dist.barrier()
        group.close()


@scenario(2)
def a_lost_partner_ends_what_is_staged() -> None:
    group = gw.ProcessGroup.own()
    dist.barrier()  # else rank 1 may abort while rank 0 still connects
    with mock.patch.object(staged, "Copied"), pretended_cuda():
        if dist.get_rank() == 1:
            group.abort("rank 1 has had enough")
            return
        message = collectives(0, 5, on_gpu)[0]
        try:
            group.run(message)
        except RuntimeError:
            assert group.failure() == "rank 1 has had enough"
        else:
            raise AssertionError("the sum of one rank")


def received(group: gw.ProcessGroup, n: int, place) -> list[Tensor]:
    """What came with each collective, whose messages are used twice."""
    ops = collectives(dist.get_rank(), n, place)
    # torch's check of collectives counts messages between two ranks as well, and misses them on the third
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        del ops[-1]
    for op in ops * 2:
        group.run(op)
    return [op.receive.whole for op in ops]
