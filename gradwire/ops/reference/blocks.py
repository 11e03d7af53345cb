"""Quantisation in blocks on a CPU, in tiles that fit its cache."""

from collections.abc import Iterator
from math import ceil

import torch
from torch import Tensor

from gradwire.ops.formats import Blocks, Code
from gradwire.ops.noise import Noise, Seed
from gradwire.ops.reference.bits import pack_codes, pack_signs, unpack_codes, unpack_signs
from gradwire.ops.reference.finite import Finite, both, finite_in
from gradwire.ops.reference.levels import levels, steps_of
from gradwire.ops.tiles import tiles


def quantise(x: Tensor, layout: Blocks, payload: Tensor, *, keep: bool, seed: Seed) -> Finite:
    """Writes x (n,) to a payload (≥ nbytes,), and where `keep`, leaves the error in x; returns whether all scales are
    finite."""
    for gap in layout.gaps:
        payload[gap].zero_()
    noise = Noise(seed, x.device) if layout.code.has_noise else None
    finite: Finite = True
    for part, scales, codes in walk(x, payload, layout):
        # quantise and pack
        finite = both(finite, _write(part, scales, codes, layout.code, noise))
        # keep the error
        if keep:
            part.sub_(dequantise(scales, codes, layout.code, part.shape))
    return finite


def dequantise(scales: Tensor, codes: Tensor, code: Code, shape: tuple[int, ...]) -> Tensor:
    """Dequantises codes (bytes,) with scales (rows, 1 or 2) to blocks of this shape (rows, width)."""
    # signs: the scale with a sign, or one of two scales
    if code.bits == 1:
        signs = torch.empty(shape, dtype=torch.float32, device=codes.device)
        unpack_signs(codes, signs)
        if code.kind == "sign":
            return signs.mul_(scales)
        return torch.where(signs > 0, scales[:, 1:], scales[:, :1])
    # numbers times a scale
    numbers = torch.empty(shape, dtype=torch.int8, device=codes.device)
    unpack_codes(codes, numbers.view(-1), code.bits)
    return numbers.float().mul_(value_of_one(scales, code))


def value_of_one(scales: Tensor, code: Code) -> Tensor:
    """What a code of 1 stands for, by each of these scales."""
    return scales.float() if code.scale_bytes == 2 else steps_of(scales, code)


def scales_in(payloads: Tensor, layout: Blocks) -> Tensor:
    """A view of the scales (..., count, 1 or 2) of payloads (..., ≥ nbytes)."""
    size = layout.code.scale_bytes
    dtype = torch.bfloat16 if size == 2 else torch.float32
    scales = payloads[..., : layout.count * size].view(dtype)
    return scales.view(*payloads.shape[:-1], layout.count, size // dtype.itemsize)


def walk(x: Tensor, payload: Tensor, layout: Blocks) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The tiles of x (n,) as blocks (rows, width), with views of their scales (rows, 1 or 2) and codes (bytes,)."""
    code = layout.code
    start = 0
    block = 0
    byte = layout.codes_at
    scales = scales_in(payload, layout)
    # part by part, tile by tile; every part's codes begin with a byte of their own
    for length in layout.lengths:
        for _, rows, width in tiles(x[start : start + length], code.block):
            end, size = start + rows * width, ceil(rows * width * code.bits / 8)
            yield x[start:end].view(rows, width), scales[block : block + rows], payload[byte : byte + size]
            start = end
            block += rows
            byte += size


def _write(part: Tensor, scales: Tensor, codes: Tensor, code: Code, noise: Noise | None) -> Finite:
    if code.bits == 1:
        pack_signs(part.reshape(-1), codes)
        return (_write_mean if code.kind == "sign" else _write_means)(part, scales)
    pack_codes(levels(part, scales, code, noise).to(torch.int8).view(-1), codes, code.bits)
    return True


def _write_mean(part: Tensor, scales: Tensor) -> Finite:
    torch.mean(part.abs(), 1, keepdim=True, out=scales)
    return finite_in(scales)


def _write_means(part: Tensor, scales: Tensor) -> Finite:
    negative = part < 0
    count = negative.sum(1)
    scales[:, 0] = part.clamp(max=0).sum(1) / count.clamp(min=1)
    scales[:, 1] = part.clamp(min=0).sum(1) / (part.shape[1] - count).clamp(min=1)
    return finite_in(scales)
