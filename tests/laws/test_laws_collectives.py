"""What the collectives for sparse gradients obey beside the laws of all: any number of ranks, any gradient."""

import re
from itertools import product

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.collective import Message, framed
from gradwire.communicators.communicator import Communicator, SparseCommunicator
from gradwire.communicators.global_top_k import merge
from gradwire.construct import exported
from gradwire.ops.backend import backend_for
from gradwire.ops.entries import EliasFano, Entries
from gradwire.ops.ranges import even, split, split_on_device
from gradwire.slots import Layout
from gradwire.wire import Wire
from tests.support.allocations import Largest
from tests.support.cases import CASES
from tests.support.harness import SMALL, draw, job, place_bytes, plan_of, slots_of, total

COLLECTIVES = [
    gw.SplitGather(), gw.SplitGather(slack=1.0, growth=1.0), gw.Exclusive(), gw.LeaderIndices(), gw.GlobalTopK(),
    gw.OkTopk(), gw.OkTopk(slack=1.0, rebalance=2, reuse=3),
]  # fmt: skip
collectives = pytest.mark.parametrize("collective", COLLECTIVES, ids=str)


def normal(n: int, seed: int) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def crowded(n: int, seed: int) -> Tensor:
    """Nearly all of it in the first eighth."""
    x = normal(n, seed)
    x[max(1, n // 8) :] *= 1e-3
    return x


def equal(n: int, seed: int) -> Tensor:
    return torch.full((n,), 0.25)


def alone(n: int, seed: int) -> Tensor:
    """Zero on all ranks but one."""
    return normal(n, seed) * (seed % 8 == 1)


def single(n: int, seed: int) -> Tensor:
    """One element a rank, another one on each."""
    x = torch.zeros(n)
    x[seed % n] = seed + 1
    return x


def running(collective: SparseCommunicator, n: int, world: int, ratio: float = 0.1):
    slots = slots_of({"w": torch.empty(n)})
    return job(plan_of(slots, gw.TopK(ratio), gw.Residual(), collective), slots, world)


@collectives
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("n", [1, 3, 500])
def test_ranks_keep_together_what_the_mean_lacks(collective: SparseCommunicator, world: int, n: int):
    with running(collective, n, world) as ranks:
        for step, gradient in enumerate([equal, normal, crowded, alone, single, normal]):
            grads = [gradient(n, 8 * step + rank) for rank in range(world)]
            before = total(ranks.state("residual"))[0] + torch.stack(grads).double().mean(0)
            means = ranks.step([[grad] for grad in grads])
            assert all(torch.equal(means[0][0], other[0]) for other in means)
            after = total(ranks.state("residual"))[0] + means[0][0]
            torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)


@collectives
def test_messages_depend_on_the_plan_alone(collective: SparseCommunicator):
    n, world, sequences = 70_001, 3, []
    for gradient in (normal, crowded, equal, alone):
        with running(collective, n, world) as ranks:
            for step in range(3):
                ranks.step([[gradient(n, 8 * step + rank)] for rank in range(world)])
            sequences += [
                [(type(op), op.receive.whole.shape, op.receive.whole.dtype) for op in transport.started]
                for transport in ranks.transports
            ]
    assert all(sequence == sequences[0] for sequence in sequences)


@collectives
@pytest.mark.parametrize("world", [2, 3, 4])
def test_all_of_the_gradient_gives_the_mean(collective: SparseCommunicator, world: int):
    grads = [normal(1000, rank) for rank in range(world)]
    with running(collective, 1000, world, ratio=1.0) as ranks:
        mean = ranks.step([[grad] for grad in grads])[0][0]
    torch.testing.assert_close(mean, torch.stack(grads).mean(0), rtol=1e-5, atol=1e-6)


def first_step(collective, grads: list[Tensor], ratio: float = 0.1) -> Tensor:
    with running(collective, len(grads[0]), len(grads), ratio) as ranks:
        return ranks.step([[grad] for grad in grads])[0][0]


def chosen(x: Tensor, k: int) -> Tensor:
    """x where it is among its k largest."""
    return torch.zeros_like(x).index_copy_(0, x.abs().topk(k).indices, x[x.abs().topk(k).indices])


@pytest.mark.parametrize("gradient", [normal, crowded])
def test_split_gather_with_room_is_all_gather(gradient):
    grads = [gradient(5000, rank) for rank in range(4)]
    torch.testing.assert_close(first_step(gw.SplitGather(4, 16), grads), first_step(gw.AllGather(), grads))


def test_split_gather_is_dense_where_entries_would_be_more():
    grads = [crowded(5000, rank) for rank in range(4)]
    torch.testing.assert_close(
        first_step(gw.SplitGather(4, 16), grads, 0.3), first_step(gw.AllGather(), grads, 0.3), rtol=1e-5, atol=1e-6
    )
    wire = gw.SplitGather(1, 4).wire(gw.TopK(0.3), Layout.vector(1 << 20), 4)
    entries = Entries(1 << 18, -(-int(0.3 * (1 << 20)) // 4)).nbytes
    assert wire == Wire(6, 3 * framed(entries) + 3 * framed(1 << 20))


@pytest.mark.parametrize("size", [0, 1, 11, 12, 13, 1 << 20])
def test_rows_start_on_multiples_of_16_bytes_and_end_with_their_flags(size: int):
    message = Message.of_bytes(torch.zeros(3, framed(size), dtype=torch.uint8), size)
    assert message.flags is not None
    assert size + 4 <= framed(size) <= size + 4 + 15
    for row in range(3):
        message.flags[row] = 1.0
        assert message.row(row).whole.data_ptr() - message.whole.data_ptr() == row * framed(size)
    assert framed(size) % 16 == 0
    assert not message.body.any()


def test_bounds_by_which_entries_are_split_are_kept_until_they_move():
    slots = slots_of(SMALL)
    with job(plan_of(slots, gw.TopK(0.1), gw.Residual(), gw.OkTopk(rebalance=1), groups=1), slots, 2) as running:
        kept = []
        for step in range(6):
            running.step(draw(slots, 2, step))
            kept.append(len(running.runtimes[0]._steps.store.groups[0].buffers.contents()[1]))
        assert kept[1:] == [kept[1]] * 5


def test_what_another_collective_needed_is_not_kept():
    slots = slots_of(SMALL)
    gathers, scatters = (
        plan_of(slots, gw.Quantized(bits=8), gw.Residual(), communicator, groups=1)
        for communicator in (gw.AllGather(), gw.ScatterReduce())
    )

    def nbytes(*plans: gw.Plan) -> int:
        with job(plans[0], slots, 2) as running:
            for plan in plans:
                running.install(plan)
                running.step(draw(slots, 2, 0))
            return running.runtimes[0]._steps.store.nbytes

    assert nbytes(gathers, scatters) == nbytes(scatters)
    assert nbytes(scatters, gathers) == nbytes(gathers)


@pytest.mark.parametrize("gradient", [normal, crowded])
@pytest.mark.parametrize("collective", [gw.OkTopk(slack=4), gw.GlobalTopK()], ids=str)
def test_the_k_largest_sums(collective: SparseCommunicator, gradient):
    n, k, world = 4000, 400, 2
    grads = [gradient(n, rank) for rank in range(world)]
    expected = chosen(sum(chosen(grad, k) for grad in grads) / world, k)
    torch.testing.assert_close(first_step(collective, grads), expected)


def test_the_leaders_coordinates_are_exact_and_every_rank_leads():
    n, world = 2000, 3
    with running(gw.LeaderIndices(), n, world) as ranks:
        for step in range(4):
            held = [own[0] for own in ranks.state("residual")]
            grads = [normal(n, 8 * step + rank) for rank in range(world)]
            mean = ranks.step([[grad] for grad in grads])[0][0]
            full = [h + g / world for h, g in zip(held, grads, strict=True)]
            where = chosen(full[step % world], n // 10).ne(0)
            torch.testing.assert_close(mean, torch.stack(full).sum(0) * where)


def test_exclusive_parts_are_exact_and_move():
    n, world = 2000, 4
    with running(gw.Exclusive(), n, world) as ranks:
        for step in range(4):
            held = [own[0] for own in ranks.state("residual")]
            grads = [normal(n, 8 * step + rank) for rank in range(world)]
            mean = ranks.step([[grad] for grad in grads])[0][0]
            full = [h + g / world for h, g in zip(held, grads, strict=True)]
            where = torch.zeros(n, dtype=torch.bool)
            for rank in range(world):
                part = (rank + step) % world
                span = slice(part * n // world, (part + 1) * n // world)
                where[span] = chosen(full[rank][span], n // 10 // world).ne(0)
            torch.testing.assert_close(mean, torch.stack(full).sum(0) * where)


def test_exclusive_reaches_all_parts_also_with_fewer_coordinates_than_ranks():
    n, world, seen = 12, 4, torch.zeros(12)
    with running(gw.Exclusive(), n, world) as ranks:
        for step in range(24):
            seen += ranks.step([[equal(n, step)]] * world)[0][0].ne(0)
    assert seen.view(world, -1).sum(1).eq(6).all()


@pytest.mark.parametrize("collective", [gw.LeaderIndices(), gw.Exclusive()], ids=str)
def test_padding_does_not_touch_the_first_coordinate(collective: SparseCommunicator):
    """The ranks that choose have one element to send and room for ten; coordinate 0 is another rank's."""
    first, second = torch.zeros(100), torch.zeros(100)
    first[7] = 1
    second[0] = 5
    if isinstance(collective, gw.Exclusive):
        first, second = second.flip(0), first  # rank 0 chooses in the first half, where it has nothing
        first[0], second[0] = 0, 3
    with running(collective, 100, 2) as ranks:
        mean = ranks.step([[first], [second]])[0][0]
        kept = [own[0] for own in ranks.state("residual")]
    assert mean[0] == 0
    assert kept[1][0] == second[0] / 2


@pytest.mark.parametrize("n", [5, 1000, 70_000])
@pytest.mark.parametrize("capacity", [1, 30, 400])
@pytest.mark.parametrize("world", [1, 3, 8])
def test_split_is_the_same_on_every_device(n: int, capacity: int, world: int):
    x = crowded(n, 0)
    indices = x.abs().topk(min(n, 300)).indices.sort().values
    bounds = even(n, world)
    edges = torch.tensor(bounds)
    with Largest() as largest:
        found, values = split_on_device(x, indices, edges, capacity)
    assert largest.bytes <= 8 * (len(indices) + (world + 1) * capacity), largest.by  # not ranks times what is chosen
    for by_host, row, kept in zip(split(x, indices, edges, capacity), found, values, strict=True):
        there = row < n
        assert torch.equal(by_host[0], row[there])
        assert torch.equal(by_host[1], kept[there])
        assert kept[~there].eq(0).all()
        assert row.diff().ge(0).all()


@pytest.mark.parametrize("overlap", [0, 3, 10])
def test_a_merge_loses_nothing(overlap: int):
    ours = torch.arange(10) * 7, normal(10, 0)
    theirs = torch.cat([ours[0][:overlap], torch.arange(71, 71 + 10 - overlap)]).sort().values, normal(10, 1)
    kept, dropped = merge(torch.cat([ours[0], theirs[0]]), torch.cat([ours[1], theirs[1]]), 10)
    both = torch.zeros(100).index_add_(0, *ours).index_add_(0, *theirs)
    torch.testing.assert_close(torch.zeros(100).index_add_(0, *kept), chosen(both, 10))
    torch.testing.assert_close(torch.zeros(100).index_add_(0, *kept).index_add_(0, *dropped), both)
    assert kept[0].diff().ge(0).all()


@pytest.mark.parametrize("n", [1, 65_536, 65_537, 200_000])
def test_places_and_entries_come_back(n: int):
    indices = normal(n, 0).topk(min(n, 40)).indices.sort().values
    values = normal(len(indices), 1)
    places, entries = EliasFano(n, 50), Entries(n, 50)
    payload = torch.full((entries.nbytes,), 0xFF, dtype=torch.uint8)
    ops = backend_for(payload)
    ops.pack_entries(payload[None], entries, indices[None], values[None])
    assert torch.equal(
        torch.zeros(n).index_add_(0, *ops.unpack_entries(payload[None], entries)),
        torch.zeros(n).index_add_(0, indices, values),
    )
    ops.pack_indices(payload[None, : places.nbytes], places, indices[None])
    found, filled = ops.unpack_indices(payload[None, : places.nbytes], places)
    assert torch.equal(found[filled], indices)
    assert int(filled.sum()) == len(indices)
    assert found.lt(n).all()


@collectives
@pytest.mark.parametrize(
    ("compressor", "partner"),
    [(gw.QSGD(), "AllGather()"), (gw.FP16(), "AllReduce()"), (gw.RandomK(), "AllReduce()"),
     (gw.PowerSGD(), "AllReduce()"), (gw.AllDimensionTopK(), "AllGather()")],
    ids=str,
)  # fmt: skip
def test_what_selects_nothing_is_refused(collective: SparseCommunicator, compressor, partner: str):
    with pytest.raises(ValueError, match=type(compressor).__name__) as refusal:
        collective.check(compressor)
    assert partner in str(refusal.value)
    assert collective.called in str(refusal.value)


def test_what_a_refusal_names_is_not_refused():
    compressors, named = {str(case.compressor): case.compressor for case in CASES}.values(), set[str]()
    for communicator, compressor in product(exported(Communicator).values(), compressors):
        try:
            communicator().check(compressor)
        except ValueError as error:
            found = re.search(r"pair it with ((?:\w+\(\)(?: or )?)+)", str(error))
            for name in re.findall(r"(\w+)\(\)", found[1]) if found else ():
                named.add(name)
                getattr(gw, name)().check(compressor)
    assert {"AllGather", "AllReduce", "LeaderIndices"} <= named


def test_a_memory_and_a_communicator_that_are_both_wrong_are_named_together():
    with pytest.raises(ValueError, match=r"all-reduce; pair it with AllGather\(\); besides, SignSGD votes"):
        gw.Group(("w",), gw.SignSGD(), gw.Residual(), gw.AllReduce())


def test_exclusive_refuses_what_selects_in_whole_groups():
    with pytest.raises(ValueError, match=r"ReusedThreshold.*pair it with LeaderIndices\(\)"):
        gw.Exclusive().check(gw.ReusedThreshold())


@pytest.mark.parametrize(
    ("options", "said"),
    [({"slack": 0.5}, "1 or more"), ({"growth": 0.0}, "1 or more"), ({"slack": float("inf")}, "takes a finite number")],
)
def test_split_gather_wants_room(options: dict[str, float], said: str):
    with pytest.raises(ValueError, match=said):
        gw.SplitGather(**options)


@pytest.mark.parametrize("options", [{"slack": 0.5}, {"rebalance": 0}, {"reuse": 0}])
def test_ok_topk_wants_room_and_periods(options: dict[str, float]):
    with pytest.raises(ValueError, match="1 or more"):
        gw.OkTopk(**options)  # pyright: ignore


def test_costs_are_the_published_ones():
    """Of 1 % of 2^20 elements, among 8 ranks: entries of 5 bytes, and what flags and rounding add."""
    n, world, k = 1 << 20, 8, 10_485
    layout, place = Layout.vector(n), place_bytes(n / k)
    entry = 4 + place

    def cost(collective, compressor: gw.compressors.Compressor | None = None) -> Wire:
        return collective.wire(compressor or gw.TopK(0.01), layout, world)

    def near(wire: Wire, messages: int, wire_bytes: float) -> bool:
        return wire.messages == messages and 0 <= wire.wire_bytes - wire_bytes < 700

    assert cost(gw.AllReduce(), gw.FP32()) == Wire(14, 14 * 4 * ((1 << 20) + 1) // 8)
    assert near(cost(gw.AllGather()), 7, 7 * entry * k)
    assert near(cost(gw.ScatterReduce()), 14, 14 / 8 * entry * k)
    assert near(cost(gw.SplitGather(1, 2)), 14, 7 / 8 * (k * entry + 2 * k * (4 + place_bytes(n / k / 2))))
    assert near(cost(gw.Exclusive()), 7 + 14, 7 / 8 * place * k + 14 / 8 * 4 * k)
    assert near(cost(gw.LeaderIndices()), 3 + 14, 3 * place * k + 14 / 8 * 4 * k)
    assert near(cost(gw.GlobalTopK()), 2 * 3, 2 * 3 * entry * k)
    anywhere, quantiles = 4 + place_bytes(8 * n / k), 7 * 4 * 64
    assert near(cost(gw.OkTopk(1)), 14, 7 / 8 * 2 * k * anywhere + quantiles)
    assert cost(gw.AllGather()).seconds(1e-4, 1e8) == pytest.approx(7e-4 + cost(gw.AllGather()).wire_bytes / 1e8)


def test_one_rank_sends_nothing():
    for collective in COLLECTIVES:
        assert collective.wire(gw.TopK(), Layout.vector(1000), 1) == Wire(0, 0)


def test_the_bytes_of_a_tree_are_its_busiest_ranks():
    n, world = 1000, 5
    with running(gw.GlobalTopK(), n, world) as ranks:
        ranks.step([[normal(n, rank)] for rank in range(world)])
        messages = [[op for op in t.started if isinstance(op, gw.SendReceive)] for t in ranks.transports]
    size = messages[0][0].send.whole.nbytes
    assert [sum(op.wire_bytes(world) for op in own) // size for own in messages] == [0, 1, 1, 1, 1]
    assert sum(op.source is not None for op in messages[0]) == 3
    assert gw.GlobalTopK().wire(gw.TopK(0.1), Layout.vector(n), world) == Wire(6, 6 * size)
