"""The functions of `gradwire.ops.reference` as Triton kernels, for tensors on a GPU: one launch each where it matters.

Multiplications and additions may be fused, so the last bits may differ from a CPU's. Import this only where
`gradwire.ops.backend` says that it can be used.
"""

from dataclasses import replace

from gradwire.ops.backend import REFERENCE
from gradwire.ops.triton import (
    adding,
    casts,
    decoding,
    entries,
    factors,
    hashing,
    orthogonal,
    products,
    rounding,
    selecting,
    slicing,
    words,
)

TRITON = replace(
    REFERENCE,
    add_in=adding.add_in,
    add_select=adding.add_select,
    add_quantise=adding.add_quantise,
    mask_zeros=adding.mask_zeros,
    round_stochastically=rounding.round_stochastically,
    sum_blocks=decoding.sum_blocks,
    sum_entries=entries.sum_entries,
    cast_parts=casts.cast_parts,
    pack_entries=entries.pack_entries,
    move_entries=entries.move_entries,
    unpack_entries=entries.unpack_entries,
    pack_indices=entries.pack_indices,
    unpack_indices=entries.unpack_indices,
    top_k=selecting.top_k,
    top_k_each=slicing.top_k_each,
    largest_first=slicing.largest_first,
    move_slices=slicing.move_slices,
    sum_slices=slicing.sum_slices,
    pack_words=words.pack_words,
    unpack_words=words.unpack_words,
    project=products.project,
    multiply=products.multiply,
    orthogonalize=orthogonal.orthogonalize,
    renew=factors.renew,
    draws=hashing.draws,
)
