"""Tensors of a GPU, which is pretended, over transports of host memory."""

import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.collective import Collective, Message, Sum
from gradwire.transports import staged
from gradwire.transports.staged import Staging
from tests.support.every_collective import WORLD, collectives
from tests.support.fixed import Fixed
from tests.support.harness import SMALL, draw, plan_of, slots_of, together
from tests.support.pretend_cuda import GPU, PretendedGPU, on_gpu, pretended_cuda, real

pytest.importorskip("triton")
from tests.support.tape import taped

SLOTS = slots_of(SMALL)


class Moments:
    """What stands for events: all have come, until one is held."""

    def __init__(self) -> None:
        self.come = threading.Event()
        self.come.set()

    def __call__(self, device: torch.device) -> Any:
        return self

    def wait(self) -> None:
        assert self.come.wait(20)


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> Iterator[Moments]:
    moments = Moments()
    monkeypatch.setattr(staged, "Copied", moments)
    yield moments
    moments.come.set()


class Recorder:
    """A transport of host memory that notes what it carries."""

    def __init__(self) -> None:
        self.carried: list[Collective] = []

    def __call__(self, op: Collective) -> Any:
        assert not hasattr(op.send.whole, "held"), "a GPU's tensor"
        self.carried.append(op)
        return self

    def wait(self) -> None:
        pass


@pytest.mark.parametrize("n", [1, 5, 129])
def test_every_collective_brings_what_it_brings_on_the_host(moments: Moments, n: int):
    """Twice, with the same messages: the second time their twins are there already."""

    def received(staging: bool) -> list[list[Tensor]]:
        transports = gw.Threads.group(WORLD)

        def on_rank(rank: int) -> list[Tensor]:
            carry = transports[rank].start
            ops = collectives(rank, n, on_gpu if staging else torch.clone)
            with PretendedGPU():
                for op in ops * 2:
                    (Staging(carry, rank).start if staging else carry)(op).wait()
            return [real(op.receive.whole) for op in ops]

        return together(WORLD, on_rank)

    with pretended_cuda():
        ours = received(True)
    for mine, theirs in zip(ours, received(False), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_who_starts_does_not_wait_and_the_order_stays(moments: Moments):
    carrier = Recorder()
    staging = Staging(carrier, 0)
    with pretended_cuda() as gpu:
        ops = [Sum(Message.plain(on_gpu(torch.full((3,), float(i))))) for i in range(4)]
        moments.come.clear()
        pending = [staging.start(op) for op in ops]
        # the GPU has not come to the copies: nothing was carried
        assert not carrier.carried
        assert not gpu.syncs
        assert not gpu.pageable
        moments.come.set()
        for each in pending:
            each.wait()
        assert not gpu.syncs
        assert not gpu.pageable
    assert [float(op.send.whole[0]) for op in carrier.carried] == [0, 1, 2, 3]


def test_the_moment_that_is_waited_for_lies_behind_the_copy(monkeypatch: pytest.MonkeyPatch):
    staging, held = Staging(Recorder(), 0), []

    def moment(device: torch.device) -> Moments:
        held.append([twin.whole.tolist() for twin in staging._twins.values()])
        return Moments()

    monkeypatch.setattr(staged, "Copied", moment)
    with pretended_cuda():
        message = Message.plain(on_gpu(torch.zeros(2)))
        for number in (1.0, 2.0):
            message.whole.fill_(number)
            staging.start(Sum(message)).wait()
    assert held == [[[1.0, 1.0]], [[2.0, 2.0]]]


def test_a_moment_is_an_event_of_the_stream_that_is_current_when_it_is_made():
    event, stream = mock.Mock(), mock.Mock()
    stream.record_event.return_value = event
    with mock.patch.object(torch.cuda, "current_stream", return_value=stream), mock.patch.object(torch.cuda, "device"):
        copied = staged.Copied(GPU)
        stream.record_event.assert_called_once_with()
        event.synchronize.assert_not_called()
        copied.wait()
    event.synchronize.assert_called_once_with()


def test_a_message_has_one_twin_for_as_long_as_it_lives(moments: Moments):
    carrier = Recorder()
    staging = Staging(carrier, 0)
    with pretended_cuda():
        lasting = Sum(Message.plain(on_gpu(torch.ones(3))))
        for _ in range(3):
            staging.start(lasting).wait()
            staging.start(Sum(Message.plain(on_gpu(torch.ones(3))))).wait()
    assert len({id(op.send.whole) for op in carrier.carried[::2]}) == 1
    assert len(staging._twins) == 1


def test_an_error_of_the_carrier_comes_where_the_collective_is_waited_for(moments: Moments):
    def carry(op: Collective) -> Any:
        raise RuntimeError("rank 1 is gone")

    with pretended_cuda():
        pending = Staging(carry, 0).start(Sum(Message.plain(on_gpu(torch.ones(3)))))
        with pytest.raises(RuntimeError, match="rank 1 is gone"):
            pending.wait()


REDUCTIONS = [
    (gw.TopK(0.05), gw.Residual(), gw.AllGather()),
    (gw.TopK(0.05), gw.Residual(), gw.GlobalTopK()),
    (gw.PowerSGD(2), gw.Residual(), gw.AllReduce()),
    (gw.Quantized(4), gw.Residual(), gw.ScatterReduce()),
]


@pytest.mark.parametrize("parts", REDUCTIONS, ids=str)
def test_a_jobs_means_are_the_same(moments: Moments, parts: Any):
    """Recorded turns among them: their messages are the same at every step."""

    def means(staging: bool) -> list[Tensor]:
        transports, seen = gw.Threads.group(2), list[Tensor]()
        ways = [Staging(transport.start, transport.rank) for transport in transports if staging]
        for transport, way in zip(transports, ways, strict=False):
            transport.start = way.start  # pyright: ignore[reportAttributeAccessIssue]
        with taped(records=True):
            running = Fixed(plan_of(SLOTS, *parts), SLOTS, 2, transports=transports)
            running.begin()
            for number in range(5):
                seen += [mean for own in running.step(draw(SLOTS, 2, number)) for mean in own]
            assert all(way._twins for way in ways)
            running.close()
        return seen

    assert all(map(torch.equal, means(True), means(False)))
