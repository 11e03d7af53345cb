"""Top-k by chunks, against its definition; means over the ranks that sent."""

import pytest
import torch
from torch import Tensor

import gradwire as gw
from tests.support.harness import job, plan_of, round_trip, slots_of


def defined(codec: gw.ChunkTopK, x: Tensor) -> Tensor:
    """Element by element: the largest k of a chunk, by magnitude in equal classes, become their class's mean."""
    out = torch.zeros_like(x)
    for start in range(0, len(x), codec.of):
        chunk = x[start : start + codec.of]
        order = sorted(range(len(chunk)), key=lambda i: -abs(chunk[i].item()))[: codec.k]
        size = codec.k // 2 ** (codec.bits - 1)
        for first in range(0, len(order), size):
            members = order[first : first + size]
            mean = sum(abs(chunk[i].item()) for i in members) / len(members)
            for i in members:
                out[start + i] = mean if chunk[i] >= 0 else -mean
    return out


@pytest.mark.parametrize("codec", [gw.ChunkTopK(64, 4096), gw.ChunkTopK(16, 100, bits=3), gw.ChunkTopK(8, 8, bits=1)])
@pytest.mark.parametrize("n", [1, 100, 4096, 12_345])
def test_it_is_as_defined(codec: gw.ChunkTopK, n: int):
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    torch.testing.assert_close(round_trip(codec, x), defined(codec, x), rtol=2**-8, atol=0)


def test_a_short_last_chunk_loses_nothing_to_its_padding():
    codec, movement = gw.ChunkTopK(64, of=4096), torch.zeros(4097)
    movement[-1] = 1.0
    assert round_trip(codec, movement)[-1] == 1


def test_a_chunk_takes_as_many_bytes_as_said():
    assert gw.ChunkTopK(64, of=4096, bits=2).payload_bytes(4096) == 64 * 12 // 8 + 64 // 8 + 2 * 2 == 108
    assert round(4 * 4096 / 108) == 152


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((60, 4096), "no multiple of 8"), ((64, 32), "no multiple of 8"), ((0, 8), "no multiple of 8"),
        ((8, 64, 0), "use 1 to 4"), ((8, 64, 5), "use 1 to 4"),
    ],
)  # fmt: skip
def test_what_makes_no_payload_is_refused(arguments: tuple[int, ...], said: str):
    with pytest.raises(ValueError, match=said):
        gw.ChunkTopK(*arguments)


def test_over_senders_each_element_counts_its_own():
    slots = slots_of({"w": torch.empty(3, 4)})
    gradients = [torch.zeros(3, 4) for _ in range(3)]
    gradients[0][0, 0], gradients[1][0, 0], gradients[2][2, 3] = 6.0, 2.0, 5.0
    plan = plan_of(slots, gw.TopK(1 / 12), gw.Residual(), gw.AllGather(over_senders=True), groups=1)
    with job(plan, slots, 3) as running:
        means = running.step([[gradient] for gradient in gradients])[0][0]
    expected = torch.zeros(3, 4)
    expected[0, 0], expected[2, 3] = 4.0, 5.0
    torch.testing.assert_close(means, expected)


def test_over_senders_wants_a_sparsifier():
    with pytest.raises(ValueError, match="pair over_senders with a sparsifier"):
        gw.Group(("w",), gw.QSGD(), gw.NoMemory(), gw.AllGather(over_senders=True))
