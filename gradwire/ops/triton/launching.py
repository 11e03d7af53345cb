# pyright: basic, reportMissingImports=false
"""One launch."""

from typing import Any

import torch
import triton


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Runs so many programs of a kernel, on the current stream of the device of its first argument, a tensor."""
    if programs:
        with torch.cuda.device_of(arguments[0]):
            kernel[(programs,)](*arguments, **constants)


def programs_for(n: int, each: int) -> int:
    """How many programs n elements take, `each` of them at a time."""
    return triton.cdiv(n, each)
