"""Packing of signs: see `gradwire.ops.reference.bits`."""

from torch import Tensor

from gradwire.ops.native.addresses import address, payload_address
from gradwire.ops.native.library import library


def pack_signs(x: Tensor, codes: Tensor, zero_is_plus: bool = True) -> None:
    """See the reference."""
    n = x.numel()
    library().gw_pack_signs(address("x", x, n), n, zero_is_plus, _codes(codes, n))


def unpack_signs(codes: Tensor, out: Tensor) -> None:
    """See the reference."""
    n = out.numel()
    library().gw_unpack_signs(_codes(codes, n), n, address("out", out, n))


def _codes(codes: Tensor, n: int) -> int:
    return payload_address("codes", codes, -(-n // 8))
