"""Packing of signs and codes: see `gradwire.ops.reference.bits`."""

import torch
from torch import Tensor

from gradwire.ops.native.addresses import address, payload_address
from gradwire.ops.native.library import library
from gradwire.ops.native.structs import BITS


def pack_signs(x: Tensor, codes: Tensor, zero_is_plus: bool = True) -> None:
    """See the reference."""
    n = x.numel()
    library().gw_pack_signs(address("x", x, n), n, zero_is_plus, _codes(codes, n, 1))


def unpack_signs(codes: Tensor, out: Tensor) -> None:
    """See the reference."""
    n = out.numel()
    library().gw_unpack_signs(_codes(codes, n, 1), n, address("out", out, n))


def pack_codes(numbers: Tensor, codes: Tensor, bits: int) -> None:
    """See the reference."""
    n = len(numbers)
    library().gw_pack_codes(address("numbers", numbers, n, torch.int8), n, _packed(bits), _codes(codes, n, bits))


def unpack_codes(codes: Tensor, numbers: Tensor, bits: int) -> None:
    """See the reference."""
    n = len(numbers)
    library().gw_unpack_codes(_codes(codes, n, bits), n, _packed(bits), address("numbers", numbers, n, torch.int8))


def _codes(codes: Tensor, n: int, bits: int) -> int:
    return payload_address("codes", codes, -(-n * bits // 8))


def _packed(bits: int) -> int:
    if bits not in BITS["nearest"]:
        raise ValueError(f"bits={bits} is not a size that codes are packed in; use 2, 3, 4 or 8")
    return bits
