# pyright: basic, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
"""Packing and unpacking of short words: see `gradwire.ops.reference.bits`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton import launching
from gradwire.ops.triton.launching import programs_for

SIZE = 256
"""Words, or bytes, of a program."""


@triton.jit
def place_of(row, rows, stride, nbytes):
    """The first byte of a row's codes: `rows` rows lie one after another, `stride` bytes from those before."""
    return row // rows * stride + row % rows * nbytes


@triton.jit
def pack_words_kernel(words, codes, count, rows, stride, k, nbytes, BITS: tl.constexpr, SIZE: tl.constexpr):
    """Packs SIZE of `count` bytes, of rows of k words."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    row, byte = at // nbytes, at % nbytes
    code = tl.zeros((SIZE,), tl.int32)
    # each of a byte's bits from the word that has it
    for i in tl.static_range(8):
        bit = 8 * byte + i
        word = tl.load(words + row * k + bit // BITS, at < count, 0).to(tl.int32)
        code |= ((word >> (bit % BITS).to(tl.int32)) & 1) << i
    tl.store(codes + place_of(row, rows, stride, nbytes) + byte, code.to(tl.uint8), at < count)


@triton.jit
def unpack_words_kernel(codes, words, count, rows, stride, k, nbytes, BITS: tl.constexpr, SIZE: tl.constexpr):
    """Unpacks SIZE of `count` words."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    row = at // k
    codes += place_of(row, rows, stride, nbytes)
    word = tl.zeros((SIZE,), tl.int32)
    # each of a word's bits from the byte that has it
    for i in tl.static_range(BITS):
        bit = at % k * BITS + i
        code = tl.load(codes + bit // 8, at < count, 0).to(tl.int32)
        word |= ((code >> (bit % 8).to(tl.int32)) & 1) << i
    tl.store(words + at, word.to(tl.int64), at < count)


def pack_words(words: Tensor, bits: int, codes: Tensor) -> None:
    """See the reference; codes are (payloads, rows, bytes), whose rows lie one after another."""
    numbers = words.view(torch.uint8) if words.dtype == torch.bool else words
    _, rows, nbytes = codes.shape
    launching.launch(
        pack_words_kernel, programs_for(codes.numel(), SIZE), numbers, codes, codes.numel(), rows, codes.stride(0),
        words.shape[-1], nbytes, BITS=bits, SIZE=SIZE,
    )  # fmt: skip


def unpack_words(codes: Tensor, bits: int, k: int) -> Tensor:
    """See the reference."""
    payloads, rows, nbytes = codes.shape
    words = torch.empty(payloads, rows, k, dtype=torch.int64, device=codes.device)
    launching.launch(
        unpack_words_kernel, programs_for(words.numel(), SIZE), codes, words, words.numel(), rows, codes.stride(0), k,
        nbytes, BITS=bits, SIZE=SIZE,
    )  # fmt: skip
    return words
