"""Triton's kernels on a GPU that is pretended: its interpreter computes, and each launch counts as one. Import this
only after TRITON_INTERPRET is set."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from gradwire.ops import backend
from gradwire.ops.triton import TRITON, launching
from gradwire.ops.triton.factors import renew_kernel
from gradwire.ops.triton.hashing import draw_kernel
from gradwire.ops.triton.largest import write_kernel
from gradwire.ops.triton.places import unpack_kernel
from gradwire.ops.triton.slices import select_slices_kernel
from gradwire.ops.triton.words import unpack_words_kernel
from tests.support.pretend_cuda import PretendedGPU, real, where

MAKE_INDICES = {
    write_kernel: 5, unpack_kernel: 0, unpack_words_kernel: 1, draw_kernel: 0, select_slices_kernel: 2, renew_kernel: 2,
}  # fmt: skip
"""Kernels whose results are read even where only launches are counted, with the result's place among the arguments."""


@contextmanager
def with_triton(gpu: PretendedGPU, *, computes: bool = True) -> Iterator[None]:
    """Has Triton's kernels compute what is on the GPU, as long as this lasts; or only counts them, in no time."""
    carry_out = launching.launch

    def launch(kernel, programs: int, *arguments, **constants) -> None:
        if gpu.counts and programs:
            gpu.kernels[kernel.__name__] += 1
            gpu.lines[where(kernel.__name__)] += 1
        if computes:
            carry_out(kernel, programs, *map(real, arguments), **constants)
        elif kernel in MAKE_INDICES:
            real(arguments[MAKE_INDICES[kernel]]).zero_()

    with (
        mock.patch.object(backend, "on_gpu", return_value=(TRITON, "")),
        mock.patch.object(launching, "launch", launch),
    ):
        yield
