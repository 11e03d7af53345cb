"""All functions that have an implementation by device, in one record per implementation.

`REFERENCE` is the definition in torch and runs where nothing faster does, `NATIVE` is C++ for CPUs, and `TRITON`, in
`gradwire.ops.triton` because that library may be missing, is for GPUs. What one of them lacks it inherits.

A vector has n elements; `rows` are several vectors, or payloads (rows, ≥ nbytes) uint8, in one call.
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from threading import Lock

import torch
from torch import Tensor

from gradwire.ops import native, noise, reference

_logger = logging.getLogger("gradwire")
_trying = Lock()
Selected = tuple[Tensor, Tensor]
"""Indices int64, and values, magnitudes or whether they are used, of selected elements."""


@dataclass(frozen=True)
class Backend:
    """The functions that algorithms compute with. The reference's docstrings define them."""

    # the next residual, by itself, or encoded in the same pass
    add_in: Callable[..., bool] = reference.adding.add_in
    add_select: Callable[..., bool] = reference.adding.add_select
    add_quantise: Callable[..., bool] = reference.adding.add_quantise
    mask_zeros: Callable[[Tensor, Tensor], None] = reference.masking.mask_zeros
    round_stochastically: Callable[[Tensor, Tensor, noise.Seed], None] = reference.rounding.round_stochastically

    # sums of payloads (parts, ranks, bytes) over the ranks, and casts
    sum_blocks: Callable[..., None] = reference.decoding.sum_blocks
    sum_entries: Callable[..., None] = reference.decoding.sum_entries
    cast_parts: Callable[..., None] = reference.casting.cast_parts
    sum_casts: Callable[[Tensor, Tensor, Sequence[int]], None] = reference.casting.sum_casts

    # elements with their indices, row by row
    pack_entries: Callable[..., Tensor] = reference.entries.pack_entries
    move_entries: Callable[..., None] = reference.entries.move_entries
    unpack_entries: Callable[..., Selected] = reference.entries.unpack_entries
    pack_indices: Callable[..., None] = reference.elias_fano.pack_indices
    unpack_indices: Callable[..., Selected] = reference.elias_fano.unpack_indices

    # the largest elements
    top_k: Callable[[Tensor, int], Tensor] = reference.selecting.top_k
    top_k_each: Callable[[Sequence[Tensor], int, int], Sequence[Tensor]] = reference.selecting.top_k_each
    largest_first: Callable[[Tensor, int], tuple[Tensor, Tensor]] = reference.selecting.largest_first
    above: Callable[[Tensor, float, int], Selected | None] = reference.selecting.above
    move_slices: Callable[..., None] = reference.slicing.move_slices
    sum_slices: Callable[..., None] = reference.slicing.sum_slices
    unpack_slices: Callable[..., Selected] = reference.slicing.unpack_slices

    # signs and short words
    pack_signs: Callable[..., None] = reference.bits.pack_signs
    add_signs: Callable[..., None] = reference.bits.add_signs
    pack_words: Callable[[Tensor, int, Tensor], None] = reference.bits.pack_words
    unpack_words: Callable[[Tensor, int, int], Tensor] = reference.bits.unpack_words

    # products of batches of matrices with thin factors, and orthonormal bases
    project: Callable[..., None] = reference.products.project
    multiply: Callable[..., None] = reference.products.multiply
    orthogonalize: Callable[[Sequence[Tensor]], None] = reference.orthogonal.orthogonalize
    renew: Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor] = reference.factors.renew

    # the same random numbers on all ranks
    draws: Callable[[int, noise.Seed, torch.device], Tensor] = noise.draws

    writes_anywhere: bool = False
    """Whether decoding writes to an output in several tensors at once, without a copy of the whole."""


REFERENCE = Backend()

NATIVE = replace(
    REFERENCE,
    add_in=native.adding.add_in,
    add_select=native.adding.add_select,
    add_quantise=native.adding.add_quantise,
    round_stochastically=native.rounding.round_stochastically,
    sum_blocks=native.decoding.sum_blocks,
    sum_entries=native.decoding.sum_entries,
    pack_entries=native.decoding.pack_entries,
    move_entries=partial(reference.entries.move_entries, pack=native.decoding.pack_entries),
    unpack_entries=native.decoding.unpack_entries,
    pack_indices=native.decoding.pack_indices,
    unpack_indices=native.decoding.unpack_indices,
    top_k=native.selecting.top_k,
    top_k_each=native.selecting.top_k_each,
    above=native.selecting.above,
    move_slices=partial(reference.slicing.move_slices, select=native.selecting.top_k_each),
    pack_signs=native.bits.pack_signs,
    add_signs=partial(reference.bits.add_signs, unpack=native.bits.unpack_signs),
    project=native.products.project,
    multiply=native.products.multiply,
    writes_anywhere=True,
)


def backend_for(x: Tensor) -> Backend:
    """The implementation that computes with x: the library on a CPU where it can be loaded, Triton on a GPU where it is
    installed and computes what the reference does, torch everywhere else."""
    return backend_on(x.device)


def backend_on(device: torch.device) -> Backend:
    """The implementation that computes on a device. Tries it there, the first time."""
    if device.type == "cpu":
        return NATIVE if native.available() else REFERENCE
    return (on_gpu(device)[0] if device.type == "cuda" else None) or REFERENCE


def compiled_on(device: torch.device) -> bool:
    """Whether kernels are compiled where they are first used, which may take longer than ranks wait for each other."""
    return device.type == "cuda"


def on_gpu(device: torch.device) -> tuple[Backend | None, str]:
    """Triton's functions, with the reference's in place of any that are wrong there, or None; and why, "" where all are
    used. The first call for a device tries them there, which takes seconds."""
    with _trying:
        return _on_gpu(device)


@cache
def _on_gpu(device: torch.device) -> tuple[Backend | None, str]:
    if not torch.cuda.is_available():
        return None, "no GPU"
    load_linear_algebra(device)
    if os.environ.get("GRADWIRE_KERNELS") == "reference":
        return None, "GRADWIRE_KERNELS=reference"
    try:
        from gradwire.ops.triton.trial import tried

        # try them once on this device
        _logger.info("trying Triton's kernels on %s, which are compiled where they never were before", device)
        return tried(device)
    except Exception as error:  # no Triton, no compiler for its launcher, a GPU that it does not know, ...
        return None, f"Triton cannot be used: {type(error).__name__}: {error}"


def load_linear_algebra(device: torch.device) -> None:
    """Has torch load its linear algebra for GPUs, which raises where two threads are the first to use it."""
    torch.linalg.cholesky_ex(torch.eye(1, dtype=torch.float32, device=device))


def in_use(device: torch.device | None = None) -> str:
    """The implementations in use by a job on a device, by default the GPU, if there is one, with the reasons, as text.
    A GPU is tried, the first time."""
    cpu = f"{'native' if native.available() else 'torch'} ({native.reason()})"
    if device is None and torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
    if device is None or device.type != "cuda":
        return cpu
    found, why = on_gpu(device)
    return f"{cpu}, on a GPU {'triton' if found else 'torch'}{f' ({why})' if why else ''}"
