# pyright: basic, reportMissingImports=false
"""Launches of kernels."""

from typing import Any

import torch
import triton

ROUNDED = {"enable_fp_fusion": False}
"""For kernels that decode: each operation is rounded by itself, so that all ranks have what torch would compute."""


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Launches so many programs of a kernel, on the current stream of the device of its first argument, a tensor."""
    if programs:
        with torch.cuda.device_of(arguments[0]):
            kernel[(programs,)](*arguments, **constants)


def programs_for(n: int, each: int) -> int:
    """The number of programs for n elements, `each` of them in one."""
    return triton.cdiv(n, each)
