"""Once warm, no compressor makes a tensor of gradient size per step."""

import tracemalloc
from dataclasses import replace

import torch

import gradwire as gw
from gradwire.compressors import Compressor
from gradwire.plans import Group
from gradwire.slots import Slot
from tests.support.allocations import Largest
from tests.support.cases import CASES, Case, rows
from tests.support.harness import exchange_of, run

N = 1 << 21
LIMIT_BYTES = N  # a quarter of the gradient: far above any tile, far below any copy that is not packed


def sparser(compressor: Compressor) -> Compressor:
    """Sends 1 %: what is proportional to what is sent may be made anew."""
    if isinstance(compressor, gw.Interleaved):
        return replace(compressor, first=sparser(compressor.first), second=sparser(compressor.second))
    if isinstance(compressor, gw.MultiLevel):
        return replace(compressor, codec=sparser(compressor.codec))  # pyright: ignore[reportArgumentType]
    if isinstance(compressor, gw.ChunkTopK):
        return replace(compressor, of=100 * compressor.k)
    if isinstance(compressor, gw.DCTTopK):
        return replace(compressor, k=compressor.chunk**2 // 100)
    if isinstance(compressor, gw.Dion):
        return replace(compressor, rank=0.01)
    return replace(compressor, ratio=0.01) if hasattr(compressor, "ratio") else compressor  # pyright: ignore


@rows(CASES)
def test_nothing_of_gradient_size_is_made_in_a_step(case: Case):
    slots = [Slot.of(name, torch.empty(rows, 1024)) for name, rows in (("a", 1536), ("b", 512))]
    grads = [torch.randn(slot.shape, generator=torch.Generator().manual_seed(0)) for slot in slots]
    transport = gw.SizeRecorder(world=2)
    group = Group(("a", "b"), sparser(case.compressor), case.memory, case.communicator)
    exchange = exchange_of(group, slots, transport)
    with torch.no_grad():
        for step in range(6):  # twice the longest period of any case: in both halves of what is kept
            run(exchange, grads, transport, step)
        with Largest() as largest:
            run(exchange, grads, transport, step=6)
        assert largest.bytes < LIMIT_BYTES, largest.by
        tracemalloc.start()
        try:
            run(exchange, grads, transport, step=7)
            assert tracemalloc.get_traced_memory()[1] < LIMIT_BYTES, "in numpy"
        finally:
            tracemalloc.stop()


def test_the_count_sees_a_copy():
    with Largest() as largest:
        x = torch.zeros(N)
        x.add_(1)
        largest.bytes = 0
        x.view(-1, 2).mul_(2)
        assert largest.bytes == 0
        x.clone()
    assert largest.bytes == 4 * N
