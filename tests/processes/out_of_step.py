"""Ranks that make different calls, come late or end: no rank hangs, none has to be killed, and each gets an error that
says what happened. Each scenario has ranks of its own, and groups of short timeouts.
"""

import atexit
import gc
import os
import signal
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from socket import gethostname

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from tests.processes.scenarios import batch, network, plain_step, refused, scenario, train

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


@scenario(3)
def a_rank_that_does_not_attach_is_named_before_a_group_is_made() -> None:
    front_ends = {
        "attach": partial(gw.attach, quick_ddp(), gw.TopK(0.1)),
        "by_host": partial(gw.ProcessGroup.by_host, 3, quick_group()),
    }
    for name, call in front_ends.items():
        if dist.get_rank() != 1:
            assert "rank 1 did not come to make a process group within" in raised(call), name
    # when all call it later, they meet
    dist.barrier()
    gw.ProcessGroup.by_host(3).close()


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
    # also where a controller sends it later
    for controller in (None, gw.WarmUp(bits=8)):
        attach = partial(gw.attach, quick_ddp(), Longer(0.1), controller=controller)
        refused(ValueError, "the ranks differ in the bytes that Longer(", attach)


@scenario(3)
def a_codec_whose_payload_becomes_longer_ends_the_job_by_name() -> None:
    for communicator in (gw.AllGather(), gw.ScatterReduce(), gw.SplitGather()):
        Longer.grown, ddp = False, quick_ddp()
        gw.attach(ddp, Longer(0.1), communicator=communicator)
        train(ddp, 3)
        Longer.grown = True
        assert "failed on rank 1: ValueError: its payload has" in raised(partial(train, ddp)), communicator


# Forked children


def ends_with(body: Callable[[], None]) -> int:
    """How a forked child ends that does this: 0 where it comes through, whatever is in its parent."""
    child = os.fork()
    if not child:
        with suppress(BaseException):
            body()
            os._exit(0)
        os._exit(1)
    until = time.monotonic() + 60
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(ended[1])


@scenario(2)
def a_forked_child_leaves_its_parents_job_alone() -> None:
    attached = []
    for _ in range(2):
        ddp = quick_ddp()
        handle = gw.attach(ddp, gw.TopK(0.1))
        train(ddp, 2)
        attached.append([ddp, handle])
    groups = [weakref.ref(handle._runtime.mesh.replica._group) for _, handle in attached]

    def collects() -> None:
        gw.ProcessGroup.close = lambda self: os._exit(2)
        refused(RuntimeError, "forked child", handle.stats)
        refused(RuntimeError, "forked child", handle.state_dict)
        refused(RuntimeError, "forked child", handle.detach)
        refused(RuntimeError, "forked child", partial(train, ddp, 1))
        attached.clear()
        gc.collect()
        atexit._run_exitfuncs()
        assert all(group() is not None for group in groups), "what waits for threads that are not there"

    assert ends_with(collects) == 0
    for module, handle in attached:
        train(module, 2, first=2)
        assert handle.verify() == []


# Exits


class Exits(gw.TopK):
    """A user's codec that wants to end the process of rank 1, by an exception that is no Exception."""

    kind: type[BaseException] | None = None

    def encode(self, *arguments) -> None:
        if Exits.kind and dist.get_rank() == 1:
            raise Exits.kind(3)
        super().encode(*arguments)


@scenario(2)
def an_exit_in_a_codec_ends_that_rank_by_it_and_the_others_hear_of_it() -> None:
    for kind, wrapped in ((SystemExit, False), (KeyboardInterrupt, False), (SystemExit, True)):
        Exits.kind, module = None, network() if wrapped else quick_ddp()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        if wrapped:
            optimizer = gw.DistributedOptimizer(optimizer, module, Exits(0.1), process_group=quick_group())
        else:
            gw.attach(module, Exits(0.1))
        train(module, 3, optimizer=optimizer)
        Exits.kind = kind
        if dist.get_rank():
            with pytest.raises(kind):
                train(module, 1, optimizer=optimizer)
        else:
            assert f"rank 1 (host {gethostname()}) ended with {kind.__name__}: 3" in raised(partial(train, module, 1))


# Late ranks


@scenario(3)
def late_ranks_are_named_with_what_they_do() -> None:
    # jobs that have failed, and are still there, do not say where the next one is
    failed = []
    for places in (
        ("in forward",),
        ("in backward",),
        ("between forward and its first gradients",),
        ("between steps", "in optimizer"),
    ):
        ddp, mine = quick_ddp(), dict(enumerate(places, 1)).get(dist.get_rank())
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        handle = gw.attach(ddp, gw.TopK(0.1))
        train(ddp, 3, optimizer=optimizer)

        def dawdles(*arguments, at: str) -> None:
            if mine == at:  # noqa: B023
                time.sleep(TIMEOUT_S + 3)

        ddp.module[2].register_forward_hook(partial(dawdles, at="in forward"))
        ddp.module[0].weight.register_hook(partial(dawdles, at="in backward"))
        optimizer.register_step_pre_hook(partial(dawdles, at="in optimizer"))

        def step() -> None:
            dawdles(at="between steps")
            optimizer.step()  # noqa: B023
            loss = ddp(batch(3)[0]).sum()  # noqa: B023
            dawdles(at="between forward and its first gradients")
            loss.backward()

        late = ", ".join(f"rank {rank} (host {gethostname()})" for rank, _ in enumerate(places, 1))
        them = f"{'it is' if len(places) == 1 else 'they are'} {', '.join(places)}"
        says = f"{late} did not reach the exchange of step 3 within {TIMEOUT_S} s; {them}"
        assert says in (heard := raised(step)), heard
        assert handle.status().endswith(says)
        failed.append(handle)


@scenario(2)
def optimizers_that_take_their_steps_in_another_order_on_one_rank_are_named_so() -> None:
    parts = [network(seed) for seed in (0, 1)]
    both = [
        gw.DistributedOptimizer(torch.optim.SGD(part.parameters()), part, gw.TopK(0.1), process_group=quick_group())
        for part in parts
    ]
    for part, optimizer in zip(parts, both, strict=True):
        train(part, 2, optimizer=optimizer)
    mine, other = (0, 1) if dist.get_rank() == 0 else (1, 0)
    late = f"rank {other} (host {gethostname()}) did not reach the exchange of step 2 within {TIMEOUT_S} s"
    waits = (
        "it is waiting for the other ranks in a step of another optimizer or model; take their steps in the same order"
    )
    heard = raised(partial(train, parts[mine], 1, optimizer=both[mine]))
    dist.barrier()  # until then no rank lets its optimizers go
    assert f"{late}; {waits}" in heard, heard


@scenario(3)
def a_backward_pass_that_raised_on_one_rank_is_named_by_all() -> None:
    """Not called gradients that are not finite, which come after it. DDP itself does not go on where it raised."""
    ddp, model = DistributedDataParallel(network()), network()
    wrapped = gw.DistributedOptimizer(torch.optim.SGD(model.parameters()), model, gw.TopK(0.1))
    for module, handle in (model, wrapped.handle), (ddp, gw.attach(ddp, gw.TopK(0.1))):
        train(module, 2, optimizer=wrapped)
        first = next(module.parameters())
        hook = first.register_hook(spoils)
        if dist.get_rank() == 1:
            refused(ArithmeticError, "no gradient", partial(plain_step, module, 2))
            with suppress(RuntimeError), handle.accumulate():  # the next forward pass frees the others
                module(batch(3)[0])
        else:
            plain_step(module, 2)
        dist.barrier()
        hook.remove()
        assert "1 skipped, the last step 2 since a backward pass raised on rank 1" in handle.status()
        if module is model:
            model.zero_grad()
            plain_step(model, 3)
            first.register_hook(lambda gradient: gradient * (torch.nan if dist.get_rank() == 1 else 1))
            plain_step(model, 4)
            assert "2 skipped, the last step 4 for the group of" in handle.status(), handle.status()


def spoils(gradient: torch.Tensor) -> None:
    if dist.get_rank() == 1:
        raise ArithmeticError("no gradient")


@scenario(2)
def a_rank_that_has_detached_is_named_so() -> None:
    ddp = quick_ddp()
    handle = gw.attach(ddp, gw.TopK(0.1))
    train(ddp, 2)
    if dist.get_rank():
        handle.detach()
    else:
        says = f"rank 1 (host {gethostname()}) has detached, or its process has ended, after 2 steps"
        assert says in raised(partial(train, ddp, 1))


@scenario(2)
def ranks_of_ddp_that_differ_in_find_unused_parameters_are_refused() -> None:
    ddp = quick_ddp(find_unused_parameters=dist.get_rank() == 0)
    refused(ValueError, "the ranks differ in find_unused_parameters", lambda: gw.attach(ddp, gw.TopK(0.1)))
