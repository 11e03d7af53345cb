# pyright: basic, reportMissingImports=false
"""Launches of kernels."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, RLock
from typing import Any

import torch
import triton
import triton.language as tl

ROUNDED = {"enable_fp_fusion": False}
"""For kernels that decode: each operation is rounded by itself, so that all ranks have what torch would compute."""


_launching = RLock()
"""Held at a launch. Triton 3.6 loads a kernel's launcher, the first time, as a module of a name that all kernels share:
of two threads one may get the other kernel's, and pass wrong arguments for as long as the process lives."""
_compiles_first = Event()


@contextmanager
def side_by_side() -> Iterator[None]:
    """A context in which the kernels that several threads launch are compiled side by side."""
    _compiles_first.set()
    try:
        yield
    finally:
        _compiles_first.clear()


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Launches so many programs of a kernel, on the current stream of the device of its first argument, a tensor."""
    if programs:
        with torch.cuda.device_of(arguments[0]):
            if _compiles_first.is_set():
                kernel.warmup(*arguments, grid=(programs,), **constants)
            with _launching:
                kernel[(programs,)](*arguments, **constants)


def programs_for(n: int, each: int) -> int:
    """The number of programs for n elements, `each` of them in one."""
    return -(-n // each)


@triton.jit
def programs_of(n, SIZE: tl.constexpr):
    """`programs_for` in a kernel, of 1 to 2^31 - 1 elements."""
    return (n - 1) // SIZE + 1  # tl.cdiv adds SIZE first


def power_of_2(n: int) -> int:
    """The smallest power of two that is n, which is 1 or more, or larger."""
    return 1 << (n - 1).bit_length()
