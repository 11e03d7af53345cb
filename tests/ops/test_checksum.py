"""Checksums see every bit, and nothing but the bits."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.ops import checksum as module
from gradwire.ops.checksum import checksum

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.uint8, torch.int64]


def drawn(n: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(n)).mul(100).to(dtype)


@given(n=st.integers(1, 3000), dtype=st.sampled_from(DTYPES), data=st.data())
def test_one_flipped_bit_is_seen(n, dtype, data):
    tensor = drawn(n, dtype)
    before = checksum(tensor)
    octets = tensor.view(torch.uint8)
    octets[data.draw(st.integers(0, len(octets) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert checksum(tensor) != before


def test_what_a_plain_sum_would_not_see():
    tensor = drawn(1000, torch.float32)
    kinds = [tensor, tensor.flip(0), -tensor, tensor.abs(), tensor.roll(1), tensor.view(2, 500).T.reshape(-1)]
    assert len({int(checksum(each)) for each in kinds}) == len(kinds)


def test_pieces_count_by_their_place(monkeypatch):
    module._factors.cache_clear()
    monkeypatch.setattr(module, "PART", 64)
    tensor = drawn(640, torch.float32)
    assert checksum(tensor) != checksum(tensor.view(10, 64).flip(0).reshape(-1))
    module._factors.cache_clear()


def test_where_it_lies_does_not_matter():
    image = drawn(2 * 3 * 4 * 5, torch.float32).view(2, 3, 4, 5)
    last = image.to(memory_format=torch.channels_last)
    assert checksum(last) == checksum(last.permute(0, 2, 3, 1).contiguous())
    apart = torch.zeros(121)[1:].copy_(image.view(-1))
    assert checksum(apart) == checksum(image)
    assert checksum(image[:, ::2]) == checksum(image[:, ::2].clone())
    assert checksum(torch.ones(()).requires_grad_()) == checksum(torch.ones(1))
