"""CUDA graphs' captures that have failed, which torch leaves half ended."""

from contextlib import suppress

import torch

_failed: list[torch.cuda.CUDAGraph] = []
"""Graphs that torch's allocators may ask for ever whether they capture."""


def end_failed(graph: torch.cuda.CUDAGraph, pool: tuple[int, int]) -> None:
    """Undoes what `capture_begin` has done and a `capture_end` that raised has not, on the current device and stream.
    Otherwise the process's other memory is never given back, and dropout raises."""
    _failed.append(graph)
    # the allocator: memory comes from the graph's pool no more
    if hasattr(torch._C, "_cuda_endAllocateToPool"):
        with suppress(RuntimeError):  # it was ended already
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
            torch._C._cuda_releasePool(torch.cuda.current_device(), pool)
    # torch 2.11's random numbers: the next capture that ends says that none is under way
    with suppress(RuntimeError):
        good = torch.cuda.CUDAGraph()
        good.capture_begin(capture_error_mode="thread_local")
        torch.zeros(1, dtype=torch.float32, device="cuda")
        good.capture_end()
