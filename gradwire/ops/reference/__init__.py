"""What each function means, in torch: the definition, and what runs where nothing faster does."""

from gradwire.ops.reference.adding import add_in, add_quantise, add_select
from gradwire.ops.reference.bits import pack_codes, pack_signs, pack_words, unpack_codes, unpack_signs, unpack_words
from gradwire.ops.reference.bounded import candidates
from gradwire.ops.reference.casting import cast_parts
from gradwire.ops.reference.decoding import decode_blocks, decode_entries
from gradwire.ops.reference.entries import pack_entries, pack_entry_rows, unpack_entries, unpack_entry_rows
from gradwire.ops.reference.factors import renew
from gradwire.ops.reference.low_rank import (
    multiply_all,
    product,
    project_all,
    project_columns,
    project_rows,
    subtract_product,
)
from gradwire.ops.reference.orthogonal import orthogonalize
from gradwire.ops.reference.places import pack_place_rows, pack_places, unpack_place_rows, unpack_places
from gradwire.ops.reference.selecting import above, top_k, top_k_columns, top_k_rows

__all__ = [
    "above", "add_in", "add_quantise", "add_select", "candidates", "cast_parts", "decode_blocks",
    "decode_entries", "multiply_all", "orthogonalize", "pack_codes", "pack_entries", "pack_entry_rows",
    "pack_place_rows", "pack_places", "pack_signs", "pack_words", "product", "project_all", "project_columns",
    "project_rows", "renew", "subtract_product", "top_k", "top_k_columns", "top_k_rows", "unpack_codes",
    "unpack_entries", "unpack_entry_rows", "unpack_place_rows", "unpack_places", "unpack_signs", "unpack_words",
]  # fmt: skip
