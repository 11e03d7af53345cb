"""Packing by itself: see `gradwire.ops.reference.bits`."""

from torch import Tensor

from gradwire.ops.native.library import library


def pack_signs(x: Tensor, codes: Tensor, zero_is_plus: bool = True) -> None:
    """See the reference."""
    library().gw_pack_signs(x.data_ptr(), x.numel(), zero_is_plus, codes.data_ptr())


def unpack_signs(codes: Tensor, out: Tensor) -> None:
    """See the reference."""
    library().gw_unpack_signs(codes.data_ptr(), out.numel(), out.data_ptr())


def pack_codes(numbers: Tensor, codes: Tensor, bits: int) -> None:
    """See the reference."""
    library().gw_pack_codes(numbers.data_ptr(), len(numbers), bits, codes.data_ptr())


def unpack_codes(codes: Tensor, numbers: Tensor, bits: int) -> None:
    """See the reference."""
    library().gw_unpack_codes(codes.data_ptr(), len(numbers), bits, numbers.data_ptr())
