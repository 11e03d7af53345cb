"""Triton's kernels on a GPU that is pretended: its interpreter computes, and each launch counts as one. Import this
only after TRITON_INTERPRET is set."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from gradwire.ops import backend
from gradwire.ops.triton import TRITON, launching
from gradwire.ops.triton.factors import renew_kernel
from gradwire.ops.triton.hashing import draw_kernel
from gradwire.ops.triton.largest import write_kernel
from gradwire.ops.triton.places import unpack_kernel
from gradwire.ops.triton.slices import select_slices_kernel
from gradwire.ops.triton.words import unpack_words_kernel
from tests.support.pretend_cuda import PretendedGPU, bytes_of, real, where

MAKE_INDICES = (write_kernel, unpack_kernel, unpack_words_kernel, draw_kernel)


@contextmanager
def with_triton(gpu: PretendedGPU, *, computes: bool = True) -> Iterator[None]:
    """Has Triton's kernels compute what is on the GPU, as long as this lasts; or only counts them, in no time."""
    carry_out = launching.launch

    def launch(kernel, programs: int, *arguments, **constants) -> None:
        if gpu.counts and programs:
            gpu.kernels[kernel.__name__] += 1
            gpu.lines[where(kernel.__name__)] += 1
            gpu.moved += bytes_of({id(one): one for one in arguments if isinstance(one, Tensor)}.values())
        if computes:
            carry_out(kernel, programs, *map(real, arguments), **constants)
        elif kernel in MAKE_INDICES:
            for one in arguments:
                if isinstance(one, Tensor) and one.dtype in (torch.int64, torch.float64):
                    real(one).zero_()
        elif kernel is select_slices_kernel or kernel is renew_kernel:  # a table has 64 bits too
            real(arguments[2]).zero_()

    with (
        mock.patch.object(backend, "on_gpu", return_value=(TRITON, "")),
        mock.patch.object(launching, "launch", launch),
    ):
        yield
