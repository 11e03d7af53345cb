"""What must hold where ranks make other calls than each other, come late or end: nobody hangs, none is ended from
outside, and each hears what happened. Each scenario runs on all ranks of one launch, over groups of short timeouts.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from tests.processes.scenarios import network, refused, scenario, train

TIMEOUT_S = 3


def quick_ddp(**options) -> DistributedDataParallel:
    """Whose ranks wait for each other for TIMEOUT_S at most."""
    return DistributedDataParallel(network(), process_group=quick_group(), **options)


def quick_group() -> dist.ProcessGroup:
    return dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))


def raised(call: Callable[[], object]) -> str:
    """The error that ends a job, which is raised from now on."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("nothing was raised")


class Longer(gw.TopK):
    """A user's codec that counts its payload wrong on rank 1, once it has `grown`."""

    grown = False

    def payload_bytes(self, n: int) -> int:
        return super().payload_bytes(n) + 64 * (Longer.grown and dist.get_rank() == 1)


# Calls that ranks make together


@scenario(2)
def a_call_that_one_rank_alone_makes_names_the_other() -> None:
    calls = {
        "verify()": gw.Handle.verify, "stragglers()": gw.Handle.stragglers,
        "state_dict(all_ranks=True)": partial(gw.Handle.state_dict, all_ranks=True),
        "from_first()": partial(gw.Handle.from_first, state=[1]),
    }  # fmt: skip
    for index, (name, call) in enumerate(calls.items()):
        ddp, caller = quick_ddp(), index % 2
        handle = gw.attach(ddp, gw.TopK(0.1))
        train(ddp, 2)
        makes = partial(call, handle) if dist.get_rank() == caller else partial(train, ddp)
        assert f"rank {1 - caller} did not come to {name} within" in raised(makes), name


@scenario(2)
def calls_that_differ_are_refused_and_training_goes_on() -> None:
    ddp, rank = quick_ddp(), dist.get_rank()
    handle = gw.attach(ddp, gw.TopK(0.1))
    train(ddp, 2)
    refused(ValueError, "the ranks differ in heal", lambda: handle.verify(heal=rank == 1))
    refused(ValueError, "the ranks differ in factor", lambda: handle.stragglers(1.5 + rank))
    refused(ValueError, "the ranks differ in call", handle.verify if rank else handle.stragglers)
    refused(
        ValueError, "the ranks differ in call",
        (lambda: handle.state_dict(all_ranks=True)) if rank else (lambda: handle.load_state_dict(handle.state_dict())),
    )  # fmt: skip
    train(ddp, 2, first=2)
    assert handle.verify() == []


@scenario(2)
def a_call_that_waits_hears_at_once_that_another_rank_has_failed() -> None:
    ddp = DistributedDataParallel(network())
    Longer.grown = False
    handle = gw.attach(ddp, Longer(0.1))
    train(ddp, 2)
    Longer.grown = True
    says = raised(partial(train, ddp) if dist.get_rank() else handle.verify)
    assert "failed on rank 1: ValueError: its payload has" in says


# Payloads


@scenario(3)
def a_codec_whose_payload_is_longer_on_one_rank_is_refused_by_all() -> None:
    Longer.grown = True
    refused(ValueError, "the ranks differ in the bytes that Longer(", lambda: gw.attach(quick_ddp(), Longer(0.1)))


@scenario(3)
def a_codec_whose_payload_becomes_longer_ends_the_job_by_name() -> None:
    for communicator in (gw.AllGather(), gw.ScatterReduce(), gw.SplitGather()):
        Longer.grown, ddp = False, quick_ddp()
        gw.attach(ddp, Longer(0.1), communicator=communicator)
        train(ddp, 3)
        Longer.grown = True
        assert "failed on rank 1: ValueError: its payload has" in raised(partial(train, ddp)), communicator
