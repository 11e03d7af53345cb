"""Entries of about 10 bits: what comes back, in which bytes, and where they are refused."""

import pytest
import torch

import gradwire as gw
from gradwire.ops.backend import backend_for
from gradwire.ops.entries import Entries
from gradwire.slots import Layout
from tests.support.harness import round_trip, slots_of

LEAVES = 2**0.375
"""Half-way between two levels, as a ratio."""


def test_the_largest_come_back_with_their_signs_and_nearly_their_size():
    codec, n = gw.TopK(1 / 16, value_bits=4), 4096
    x = torch.randn(n, generator=torch.Generator().manual_seed(0))
    out = round_trip(codec, x)
    expected = x.abs().topk(n // 16).indices.sort().values
    assert torch.equal(out.nonzero()[:, 0], expected)
    ratio = out[expected] / x[expected]
    assert bool((ratio > 1 / LEAVES / 1.01).all())
    assert bool((ratio < LEAVES * 1.01).all())


@pytest.mark.parametrize("ratio", [1 / 8, 1 / 16, 1 / 64])
def test_an_entry_takes_6_bits_and_those_of_its_gap(ratio: float):
    n = 1 << 20
    bits = 8 * gw.TopK(ratio, value_bits=4).payload_bytes(n) / (n * ratio)
    gap = torch.tensor(1 / ratio).log2().item()
    assert bits == pytest.approx(4 + 2 + gap + 16 / 1024 / ratio, rel=1e-3)


@pytest.mark.parametrize("ratio", [1 / 2000, 1e-4])
def test_where_scales_take_more_than_exact_values_these_are_sent(ratio: float):
    for n in (1 << 20, 100_003):
        codec, exact = gw.TopK(ratio, value_bits=4), gw.TopK(ratio)
        assert codec.payload_bytes(n) == exact.payload_bytes(n)
        assert codec.layout(n).exact
    assert not gw.TopK(1 / 1700, value_bits=4).layout(1 << 20).exact


def test_a_regions_share_never_takes_more_than_with_exact_values():
    n = 1 << 20
    for communicator in (gw.OkTopk(), gw.SplitGather(), gw.GlobalTopK()):
        for world in (4, 64, 256):
            levels = communicator.wire(gw.TopK(1 / 16, value_bits=4), Layout.vector(n), world)
            exact = communicator.wire(gw.TopK(1 / 16), Layout.vector(n), world)
            assert levels.wire_bytes <= exact.wire_bytes, (communicator, world)


def test_zeros_take_no_room_and_stay_zero():
    layout = Entries(1000, 10, 4)
    indices, values = torch.tensor([3, 500, 500, 999, 999]), torch.tensor([2.0, 0.0, -2.0, 0.0, 0.0])
    payload = torch.zeros(layout.nbytes, dtype=torch.uint8)
    sent = backend_for(payload).pack_entries(payload[None], layout, indices[None], values[None])[0]
    assert sent.tolist() == [2.0, 0.0, -2.0, 0.0, 0.0]
    found, theirs = backend_for(payload).unpack_entries(payload[None], layout)
    assert torch.zeros(1000).index_add_(0, found, theirs).nonzero()[:, 0].tolist() == [3, 500]


@pytest.mark.parametrize("communicator", [gw.Exclusive(), gw.LeaderIndices()], ids=str)
def test_codes_are_not_added_in_flight(communicator: gw.Communicator):
    with pytest.raises(ValueError, match="use value_bits=32"):
        gw.Group(("x",), gw.TopK(value_bits=4), gw.Residual(), communicator)


def test_what_is_not_sent_whole_is_not_masked():
    with pytest.raises(ValueError, match=r"use Residual\(\)"):
        gw.Group(("x",), gw.TopK(value_bits=4), gw.DGCMemory(), gw.AllGather())
    with pytest.raises(ValueError, match="takes 32 or 4"):
        gw.TopK(value_bits=8)  # pyright: ignore[reportArgumentType]


def test_vectors_travel_with_the_rest():
    slots = slots_of({"w": torch.empty(30, 40), "b": torch.empty(30)})
    assert len(gw.plans.uniform(slots, gw.TopK(value_bits=4)).groups) == 1
    assert len(gw.plans.uniform(slots, gw.TopK()).groups) == 2
