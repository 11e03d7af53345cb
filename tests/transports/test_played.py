"""One rank of N, without the others: its clock, the collectives' costs, and that all algorithms run on it."""

from itertools import pairwise
from math import log2

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.collective import Broadcast, Collective, Gather, Message, SendReceive, Sum
from gradwire.communicators.scatter_reduce import part_bounds
from gradwire.runtime.failures.raised import note_raised, raised
from gradwire.transports.card import CPU, ClockLane
from gradwire.transports.others import Others
from gradwire.transports.played import SentCollective
from gradwire.transports.played_group import PlayedGroup
from gradwire.tuner.profiler import contention, slowest
from tests.support.cases import CASES, Case, rows
from tests.support.harness import WIDE, draw, exchange_of, job, plan_of, run, slots_of

SLOTS = slots_of(WIDE)
WIDE_SLOTS = slots_of({"w": torch.empty(100, 100)})
LATENCY_S, BYTES_PER_S = 1e-5, 1e9
CARD = gw.Card(LATENCY_S, BYTES_PER_S)


def fast() -> gw.Card:
    """Messages take no time."""
    return gw.Card(0, 1e30)


class Clock:
    """Time that passes only where a thread sleeps."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_backward_pass_that_raised_is_no_reason_for_later_steps():
    mesh = gw.Mesh.of(gw.Played(4, fast()))
    note_raised(mesh, 3)
    assert raised(mesh, 3) == "since a backward pass raised on rank 0"
    assert raised(mesh, 4) is None


def test_messages_take_turns_and_waiting_sleeps():
    clock = Clock()
    lane, came = ClockLane(clock, clock.sleep), []
    first, second = (lane.carry(seconds, lambda: came.append(clock.now)) for seconds in (1.0, 0.5))
    assert came == [100.0, 100.0]  # bytes are written while the message is under way, not when it is waited for
    second.wait()
    assert clock.now == pytest.approx(101.5)
    first.wait()
    assert clock.now == pytest.approx(101.5)
    clock.now += 7
    lane.carry(0.25, lambda: None).wait()
    assert clock.now == pytest.approx(108.75)


def collectives(world: int, m: int) -> list[tuple[Collective, float, float]]:
    """Each with its messages one after another, and its bytes; `m` bytes are sent."""
    some, rows, others = (Message.plain(torch.zeros(shape, dtype=torch.uint8)) for shape in (m, (world, m), (world, m)))
    depth = log2(world)
    return [
        (Sum(some), 2 * (world - 1), 2 * (world - 1) / world * m),
        (Gather(some, rows), world - 1, (world - 1) * m),
        (gw.AllToAll(others, rows), world - 1, (world - 1) * m),
        (Broadcast(some, 0), depth, depth * m),
        (Gather(some, rows, parts=others), world - 1, (world - 1) * m),
        (SendReceive(some, some, None, 1), 1, m),
        (SendReceive(some, some), 0, 0),
    ]


@pytest.mark.parametrize("m", [1 << 10, 1 << 20])
def test_collectives_cost_what_is_published(m: int):
    for op, messages, nbytes in collectives(8, m):
        seconds = messages * LATENCY_S + nbytes / BYTES_PER_S
        assert CARD.seconds(SentCollective.of(op, 8).ways(8, 8)) == pytest.approx(seconds), op


def test_nccl_also_knows_trees_for_sums_and_rings_for_broadcasts():
    """Fewer messages for what is small, fewer bytes for what is large; gloo, on CPUs, does not."""
    for kind, small, large in (("Sum", (6, 2048), (14, 7 << 18)), ("Broadcast", (3, 3072), (7, 1 << 20))):
        for nbytes, cost in ((1 << 10, small), (1 << 20, large)):
            ways = SentCollective(kind, nbytes).ways(8, 8)
            assert CARD.seconds(ways) == pytest.approx(cost[0] * LATENCY_S + cost[1] / BYTES_PER_S)
            assert len(SentCollective(kind, nbytes, nccl=False).ways(8, 8)) == 1
    on_gpu = Sum(Message.plain(torch.zeros(8, dtype=torch.uint8, device="meta")))
    assert SentCollective.of(on_gpu, 8).nccl


def test_a_ring_of_all_ranks_has_the_latency_of_hosts():
    ring, _ = SentCollective("Sum", 1 << 20).ways(64, hosts=8)
    assert (ring.messages, ring.wire_bytes) == (14, 2 * 63 * (1 << 20) // 64)


@rows(CASES)
def test_every_algorithm_runs_without_the_others(case: Case):
    """Also where the last part of a group is shorter, of which a rank gets no payload that it makes itself, and where
    others send payloads of other batches."""
    names = tuple(slot.name for slot in SLOTS)
    for others in (None, Others(case.compressor.period)):
        played = gw.Played(5, fast(), others=others)
        exchange = exchange_of(gw.Group(names, case.compressor, case.memory, case.communicator), SLOTS, played)
        for step in range(4 if others else 2):
            (grads,) = draw(SLOTS, 1, step)
            means = [grad.clone() for grad in grads]
            with torch.no_grad():
                run(exchange, means, played, step)
            assert all(mean.isfinite().all() for mean in means)


@pytest.mark.parametrize("cls", [gw.SizeRecorder, lambda world: gw.Played(world, fast())], ids=["recording", "played"])
def test_a_gather_of_parts_brings_each_its_own(cls):
    """ScatterReduce's last part is shorter."""
    n, world, transport = 16_481, 5, cls(5)
    slots = slots_of({"w": torch.empty(n, 1)})
    exchange = exchange_of(gw.Group(("w",), gw.FP16(), gw.NoMemory(), gw.ScatterReduce()), slots, transport)
    (grads,) = draw(slots, 1, 0)
    mean = grads[0].clone()
    with torch.no_grad():
        run(exchange, [mean], transport)
    bounds = part_bounds(n, world)
    assert bounds[-1] - bounds[-2] < bounds[1]
    # of this rank's part the sum came; of the others' parts what one rank of `world` would have sent to be added up
    for rank, (a, b) in enumerate(pairwise(bounds)):
        scale = 1 if rank == 0 else 1 / world
        assert torch.allclose(mean[a:b], grads[0][a:b] * scale, rtol=1e-3, atol=1e-3)


def step(ddp: nn.Module) -> list[torch.Tensor]:
    ddp.zero_grad()
    ddp(torch.ones(3, 40)).square().sum().backward()
    return [parameter.grad.clone() for parameter in ddp.parameters() if parameter.grad is not None]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 64), nn.Linear(64, 8))


@pytest.mark.parametrize(
    "register",
    [
        lambda ddp, group: None,
        lambda ddp, group: ddp.register_comm_hook(group, default_hooks.fp16_compress_hook),
        lambda ddp, group: ddp.register_comm_hook(
            PowerSGDState(group, 4, start_powerSGD_iter=2, min_compression_rate=1), powerSGD_hook
        ),
    ],
    ids=["ddp", "fp16", "powersgd"],
)
def test_ddp_and_torchs_hooks_run_on_a_played_group(register):
    own = step(model())
    # slow enough for callbacks to run on the threads of the messages
    group = PlayedGroup(gw.Played(64, gw.Card(2e-5, 1e30)))
    ddp = DistributedDataParallel(model(), process_group=group)
    register(ddp, group)
    means = [step(ddp) for _ in range(3)][-1]
    # all ranks have this rank's gradient: the mean is that, as far as rank 4 goes
    assert sum((mean - mine).norm() for mean, mine in zip(means, own, strict=True)) < 0.05 * sum(g.norm() for g in own)


def test_ddps_sparse_gradients_are_refused_by_name():
    table = nn.Embedding(10, 4, sparse=True)
    ddp = DistributedDataParallel(table, process_group=PlayedGroup(gw.Played(64, fast())))
    with pytest.raises(NotImplementedError, match=r"knows no sparse gradients, as DDP reduces them; use Embedding\("):
        ddp(torch.arange(3)).sum().backward()


@pytest.mark.parametrize("compressor", [gw.FP32(), gw.NATIVE, gw.TopK(0.1)], ids=["fp32", "native", "topk"])
@pytest.mark.parametrize("hosts", [False, True])
def test_attach_runs_on_a_played_cluster(compressor, hosts: bool):
    own = step(model())
    transport = gw.Played(8, fast()).by_host(8, fast()) if hosts else gw.Played(64, fast())
    ddp = DistributedDataParallel(model(), process_group=PlayedGroup(gw.Played(64, fast())))
    handle = gw.attach(ddp, compressor, transport=transport)
    means = [step(ddp) for _ in range(3)][-1]
    handle.detach()
    if not isinstance(compressor, gw.TopK):
        for mean, mine in zip(means, own, strict=True):
            assert torch.allclose(mean, mine, rtol=1e-5)


def test_a_rank_of_a_host_leads_all_groups():
    """A rank that waits for other leaders would find all that is between hosts done at once."""
    mesh, gathers = gw.Played(4, fast()).by_host(8, fast()), []
    start = mesh.replica.start
    mesh.replica.start = lambda op: (gathers.append(op) if isinstance(op, Gather) else None, start(op))[1]
    plan = plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather(), groups=3)
    with job(plan, SLOTS, 1, transports=[mesh]) as running:
        gathers.clear()
        running.step(draw(SLOTS, 1, 0))
    assert len(gathers) == 3


@pytest.mark.parametrize(("latency_s", "bytes_per_s"), [(-1, 1), (0, 0), (float("nan"), 1)])
def test_cards_that_cannot_be_are_refused(latency_s: float, bytes_per_s: float):
    with pytest.raises(ValueError, match="use e"):
        gw.Card(latency_s, bytes_per_s)


def test_ranks_agree_on_the_played_ones_own_seconds():
    """By which the profiler measures: no sum may count them once for every rank."""
    assert slowest([0.5, 2.0], gw.Mesh.of(gw.Played(64, fast())), torch.device("cpu")) == [0.5, 2.0]
    assert slowest([0.5, 2.0], gw.Played(8, fast()).by_host(8, fast()), torch.device("cpu")) == [0.5, 2.0]


def test_played_ranks_share_no_cores():
    """Each host has its own: the profiler counts processes, of which there is one."""
    assert contention(gw.Mesh.of(gw.Played(64, fast())), CPU) == contention(gw.Mesh.of(gw.Played(1, fast())), CPU)


@pytest.mark.parametrize("period", [1, 2])
def test_others_send_payloads_of_other_batches(period: int):
    """Of earlier steps, whole periods back: a compressor's payloads may have another form in each step of a period."""
    played, world = gw.Played(8, fast(), others=Others(period)), 8
    send, receive = (Message.of_bytes(torch.zeros((rows, 16), dtype=torch.uint8), 8) for rows in (1, world))
    to_each, from_each = (Message.of_bytes(torch.zeros((world, 16), dtype=torch.uint8), 8) for _ in range(2))
    for step in range(12 * period):
        send.body.fill_(step)
        to_each.body.fill_(step)
        for message in (send, to_each):
            message.whole[:, -4:].view(torch.float32).fill_(step % 3)  # flags are this step's
        played.run(Gather(send.row(0), receive))
        played.run(gw.AllToAll(to_each, from_each))
        for came in (receive, from_each):
            steps = came.body[:, 0].tolist()
            assert (came.body == came.body[:, :1]).all()
            assert came.whole[:, -4:].view(torch.float32).flatten().tolist() == [step % 3] * world
            assert steps[0] == step
            if step < period:
                assert set(steps) == {step}
            assert {number % period for number in steps} == {step % period}
            if step >= 4 * period:
                assert set(steps) == {step - each * period for each in range(5)}
        assert played.others
        assert len({number % played.others.batches for number in steps}) == len(set(steps))


def test_a_mean_is_of_different_payloads():
    """Of top-k with a residual: this step's, and those of the steps before."""
    selected: list[set[int]] = []
    for others in (None, Others()):
        played, means = gw.Played(5, fast(), others=others), list[torch.Tensor]()
        exchange = exchange_of(gw.Group(("w",), gw.TopK(0.01), gw.Residual(), gw.AllGather()), WIDE_SLOTS, played)
        for step in range(6):
            means = [draw(WIDE_SLOTS, 1, step)[0][0].clone()]
            with torch.no_grad():
                run(exchange, means, played, step)
        selected.append(set(means[0].flatten().nonzero().flatten().tolist()))
    own, mixed = selected
    assert own < mixed
    assert len(mixed) > 4 * len(own)
