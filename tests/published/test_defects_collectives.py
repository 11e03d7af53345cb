"""What went wrong in the published sparse collectives and must not here, beside what the laws show."""

from typing import Literal

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.ops.backend import backend_for
from gradwire.ops.entries import Entries
from tests.support.harness import job, plan_of, slots_of, total


def start(collective, n: int, world: int, ratio: float):
    slots = slots_of({"w": torch.empty(n)})
    return job(plan_of(slots, gw.TopK(ratio), gw.Residual(), collective), slots, world)


def at(n: int, **values: float) -> Tensor:
    """Zero but for x3=0.5: 0.5 at index 3."""
    x = torch.zeros(n)
    for place, value in values.items():
        x[int(place[1:])] = value
    return x


@pytest.mark.parametrize("world", [3, 5, 6, 7])
def test_gtopk_1_the_tree_has_any_number_of_ranks(world: int):
    """int(log2 N) rounds leave the ranks above a power of two out."""
    with start(gw.GlobalTopK(), 64, world, 0.5) as running:
        mean = running.step([[at(64, **{f"x{rank}": world})] for rank in range(world)])[0][0]
    assert mean.nonzero().flatten().tolist() == list(range(world))


def test_gtopk_2_what_an_inner_merge_drops_is_kept_though_the_coordinate_is_in_the_result():
    """gTop-k forgets what it sent at all coordinates of the result, also what never got there."""
    grads = [at(16, x3=3), at(16, x5=5), at(16, x3=4), at(16, x3=4)]
    with start(gw.GlobalTopK(), 16, 4, 1 / 16) as running:
        mean = running.step([[grad] for grad in grads])[0][0]
        kept = total(running.state("residual"))[0]
    assert mean.tolist() == at(16, x3=8 / 4).tolist()
    assert kept.tolist() == at(16, x3=3 / 4, x5=5 / 4).tolist()


def test_ok_topk_1_indices_are_whole_numbers():
    """As float32 they are exact to 2^24 only; as 16 bits with a sign, negative from 2^15 on."""
    n = (1 << 24) + 70_000
    indices = torch.tensor([0, 32_767, 32_768, 65_535, (1 << 24) + 1, n - 1])
    entries = Entries(n, len(indices))
    payload = torch.zeros(entries.nbytes, dtype=torch.uint8)
    ops = backend_for(payload)
    ops.pack_entries(payload[None], entries, indices[None], torch.ones(1, len(indices)))
    assert torch.equal(ops.unpack_entries(payload[None], entries)[0], indices)


@pytest.mark.parametrize("bits", [32, 4])
def test_split_gather_has_room_for_entries_of_its_shorter_ranges(bits: Literal[32, 4]):
    """Of 47 elements 12 entries take 4 bytes more than of 48, which ours once did not make room for."""
    slots = slots_of({"w": torch.empty(95)})
    grads = [torch.randn(95, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    with job(plan_of(slots, gw.TopK(0.16, value_bits=bits), gw.Residual(), gw.SplitGather()), slots, 2) as running:
        mean = running.step([[grad] for grad in grads])[0][0]
        kept = total(running.state("residual"))[0]
    torch.testing.assert_close((mean + kept).float(), sum(grads) / 2)


def test_ok_topk_4_regions_follow_the_gradient():
    """Its data balancing is commented out. With all of the gradient in the first tenth, even regions have room for
    part of the selection only."""
    n, world, k = 40_000, 4, 400

    def crowd(seed: int) -> Tensor:
        x = torch.zeros(n)
        x[: n // 10] = torch.randn(n // 10, generator=torch.Generator().manual_seed(seed))
        return x

    with start(gw.OkTopk(rebalance=1, reuse=1), n, world, k / n) as running:
        sent = [
            int(running.step([[crowd(4 * step + rank)] for rank in range(world)])[0][0].count_nonzero())
            for step in range(3)
        ]
    assert sent[0] == 150, "one region's room"
    assert sent[1:] == [k, k]


def test_ok_topk_5_a_stale_threshold_is_replaced_at_once():
    """Its factor of 1.008 a step needs hundreds of steps where gradients have become small."""
    n, k = 10_000, 100
    with start(gw.OkTopk(slack=4), n, 2, k / n) as running:
        sent = []
        for step, scale in enumerate([1.0, 0.0, 0.0]):
            grads = [torch.randn(n, generator=torch.Generator().manual_seed(2 * step + r)) * scale for r in (0, 1)]
            sent.append(int(running.step([[grad] for grad in grads])[0][0].count_nonzero()))
    assert sent[0] == sent[2] == k
    assert sent[1] < 2 / 3 * k, "what the first threshold lets pass of the rest"
