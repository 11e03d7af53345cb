"""The functions of `gradwire.ops.reference` in Triton, for tensors on a GPU: one launch each where it matters.

What has no kernel here is the reference's. Sums may be fused, so their last bits may differ from a CPU's; stochastic
codes draw their noise from Triton's generator. Import this only where `gradwire.ops.kernels` says that it can be used.
"""

from gradwire.ops.reference import (
    above,
    pack_codes,
    pack_signs,
    top_k,
    top_k_columns,
    top_k_rows,
    unpack_codes,
    unpack_signs,
)
from gradwire.ops.triton.adding import add_in, add_quantise, add_select, mask_zeros, quantise_parts
from gradwire.ops.triton.bounded import candidates
from gradwire.ops.triton.casts import cast_parts
from gradwire.ops.triton.decoding import decode_blocks, dequantise_parts
from gradwire.ops.triton.entries import (
    decode_entries,
    move_entries,
    pack_entries,
    pack_entry_rows,
    pack_place_rows,
    pack_places,
    select_parts,
    unpack_entries,
    unpack_entry_rows,
    unpack_parts,
    unpack_place_rows,
    unpack_places,
)
from gradwire.ops.triton.factors import MOST, renew
from gradwire.ops.triton.orthogonal import orthogonalize
from gradwire.ops.triton.products import multiply_all, project_all
from gradwire.ops.triton.words import pack_words, unpack_words

__all__ = [
    "MOST", "above", "add_in", "add_quantise", "add_select", "candidates", "cast_parts", "decode_blocks",
    "decode_entries", "dequantise_parts", "mask_zeros", "move_entries", "multiply_all", "orthogonalize", "pack_codes",
    "pack_entries", "pack_entry_rows", "pack_place_rows", "pack_places", "pack_signs", "pack_words", "project_all",
    "quantise_parts", "renew", "select_parts", "top_k", "top_k_columns", "top_k_rows", "unpack_codes", "unpack_entries",
    "unpack_entry_rows", "unpack_parts", "unpack_place_rows", "unpack_places", "unpack_signs", "unpack_words",
]  # fmt: skip
