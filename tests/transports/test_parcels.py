"""Values that are sent as bytes: each parcel is of bounded size, and what is in it arrives."""

import pytest
import torch

import gradwire as gw
from gradwire.collective import Broadcast
from gradwire.transports import parcels
from tests.support.harness import CPU, raising, together


def odd_tensors(seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [
        torch.randn(7, 33), torch.randn(50, 1).expand(50, 9), torch.randn(9, 40)[:, ::3], torch.randn(()),
        torch.randn(2, 3, 5, 4).to(memory_format=torch.channels_last), torch.empty(0, 4), torch.randn(1).expand(2),
        torch.randint(0, 9, (300,), dtype=torch.int16)[1::2], torch.randn(41).to(torch.float8_e4m3fn)[3:],
        torch.randn(40, dtype=torch.complex64)[::2].conj(), torch.randn(30).unfold(0, 8, 3),
    ]  # fmt: skip


@pytest.mark.parametrize("room", [64, 256, 1 << 24])
def test_tensors_of_any_type_and_stride_arrive_in_parcels_of_bounded_size(monkeypatch, room):
    monkeypatch.setattr(parcels, "CAPACITY", room)
    ranks = gw.Threads.group(3)
    tensors = [odd_tensors(rank) for rank in range(3)]
    raising(together(3, lambda rank: gw.Mesh.of(ranks[rank]).share(tensors[rank], CPU, source=1)))
    for got in tensors:
        for mine, want in zip(got, odd_tensors(1), strict=True):
            assert mine.stride() == want.stride()
            assert torch.equal(mine.to(torch.complex64), want.to(torch.complex64))
    sent = [op.message.whole.nbytes for op in ranks[0].started if isinstance(op, Broadcast)]
    assert max(sent) <= room
    whole = sum(parcels.stored(tensor).nbytes for tensor in odd_tensors(1))
    assert whole <= sum(sent) <= whole + 16 * (len(odd_tensors(1)) + 4 * len(sent))  # repetitions are sent once


def test_ranks_may_have_values_in_different_orders_of_memory():
    ranks, first = gw.Threads.group(2), torch.randn(2, 3, 4, 4)
    mine = [first.clone(), torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)]
    raising(together(2, lambda rank: gw.Mesh.of(ranks[rank]).share([mine[rank]], CPU)))
    assert torch.equal(mine[1], first)


def test_what_is_gathered_may_be_of_any_type():
    for own in (torch.arange(6, dtype=torch.int16)[::2], torch.tensor([True, False]), torch.randn(3).bfloat16()):
        ranks = gw.Threads.group(2)
        for rows in raising(together(2, lambda rank, r=ranks, t=own: gw.Mesh.of(r[rank]).gather(t))):
            assert torch.equal(rows, own.expand(2, -1))


def test_a_message_with_gaps_is_refused():
    with pytest.raises(ValueError, match="strides"):
        gw.Message.plain(torch.zeros(4, 6)[:, ::2])
