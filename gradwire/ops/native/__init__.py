"""The functions of `gradwire.ops.reference` in C++, for tensors on a CPU: one pass each, without Python's lock.

Every level of instructions gives the same bits as the reference, but for the scales of `sign` and `one bit` codes,
whose sums it adds up in another order. Call these only where `available()`.
"""

from gradwire.ops.native.adding import add_in, add_quantise, add_select
from gradwire.ops.native.bits import pack_codes, pack_signs, unpack_codes, unpack_signs
from gradwire.ops.native.decoding import (
    decode_blocks,
    decode_entries,
    pack_entries,
    pack_places,
    unpack_entries,
    unpack_places,
)
from gradwire.ops.native.library import LEVELS, available, level, reason, set_level
from gradwire.ops.native.low_rank import product, project_columns, project_rows, subtract_product
from gradwire.ops.native.selecting import above, top_k, top_k_columns, top_k_rows
from gradwire.ops.reference.bits import pack_words, unpack_words
from gradwire.ops.reference.casting import cast_parts

__all__ = [
    "LEVELS", "above", "add_in", "add_quantise", "add_select", "available", "cast_parts", "decode_blocks",
    "decode_entries", "level", "pack_codes", "pack_entries", "pack_places", "pack_signs", "pack_words", "product",
    "project_columns", "project_rows", "reason", "set_level", "subtract_product", "top_k", "top_k_columns",
    "top_k_rows", "unpack_codes", "unpack_entries", "unpack_places", "unpack_signs", "unpack_words",
]  # fmt: skip
