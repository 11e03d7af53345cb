"""The largest coefficients of a cosine transform in blocks, against the formula of the DCT-II."""

from math import cos, pi, sqrt

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.compressors import context_for
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.slots import Layout
from tests.support.harness import CPU, SMALL, slots_of


def coefficient(block: Tensor, row: int, column: int) -> float:
    """One coefficient of the orthonormal DCT-II of a block (rows, columns), summed element by element."""
    rows, columns = block.shape
    total = sum(
        float(block[i, j]) * cos(pi * (i + 0.5) * row / rows) * cos(pi * (j + 0.5) * column / columns)
        for i in range(rows)
        for j in range(columns)
    )
    scales = [sqrt((1 if place == 0 else 2) / n) for place, n in ((row, rows), (column, columns))]
    return total * scales[0] * scales[1]


def test_the_payload_holds_the_largest_coefficients_of_each_block():
    """4 x 6 in two blocks of 4 x 3: float32 values, then the indices in 16 bits, row by row within the block."""
    codec, layout = gw.DCTTopK(5, chunk=4), Layout(tuple(slots_of({"w": torch.empty(4, 6)})))
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    payload = torch.zeros(codec.group_bytes(layout, 0), dtype=torch.uint8)
    codec.encode(LazySum.of(x.flatten().clone()), payload[None], context_for(layout, codec, CPU).whole)
    assert len(payload) == 2 * 5 * (4 + 2)
    values, indices = payload[:40].view(torch.float32).view(2, 5), payload[40:].view(torch.int16).view(2, 5)
    for block, sent, places in zip(x.split(3, 1), values, indices, strict=True):
        expected = torch.tensor([coefficient(block, place // 3, place % 3) for place in range(12)])
        assert set(places.tolist()) == set(expected.abs().topk(5).indices.tolist())
        torch.testing.assert_close(sent, expected[places.long()], rtol=1e-5, atol=1e-6)


def test_all_coefficients_stand_for_all_elements():
    """Of slots of every shape and order in memory, some of them of equal blocks."""
    codec, layout = gw.DCTTopK(100, chunk=9), Layout(tuple(slots_of(SMALL | {"twin": torch.empty(31, 17)})))
    context = context_for(layout, codec, CPU)
    x = torch.randn(layout.numel, generator=torch.Generator().manual_seed(0))
    left, out = x.clone(), torch.empty_like(x)
    payload = torch.zeros(codec.group_bytes(layout, 0), dtype=torch.uint8)
    codec.encode(LazySum.of(left), payload[None], context.whole)
    codec.decode(payload[None, None], Mean.of(out), context.whole)
    torch.testing.assert_close(out, x, rtol=0, atol=2e-6)
    torch.testing.assert_close(left, torch.zeros_like(x), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("shape", "sides"),
    [
        ((128, 192), (64, 64)), ((100, 48), (50, 48)), ((301, 257), (43, 1)), ((8, 6, 3, 3), (8, 54)),
        ((300,), (1, 60)), ((), (1, 1)),
    ],
)  # fmt: skip
def test_a_blocks_sides_are_the_largest_divisors(shape: tuple[int, ...], sides: tuple[int, int]):
    (blocks,) = gw.DCTTopK(chunk=64).blocks(Layout(tuple(slots_of({"w": torch.empty(shape)}))))
    assert (blocks.rows, blocks.columns) == sides
    assert blocks.count * blocks.size == torch.Size(shape).numel()


def test_a_block_takes_as_many_bytes_as_said():
    layout = Layout(tuple(slots_of({"w": torch.empty(64, 64)})))
    assert gw.DCTTopK().group_bytes(layout, 0) == 32 * (4 + 2) == 192
    assert round(4 * 64 * 64 / 192) == 85


def test_indices_in_blocks_beyond_65536_elements_take_32_bits():
    layout = Layout(tuple(slots_of({"w": torch.empty(300, 300)})))
    assert gw.DCTTopK(10, chunk=300).group_bytes(layout, 0) == 10 * (4 + 4)
