# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
"""Candidates for selection: see `gradwire.ops.reference.bounded`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton import launching
from gradwire.ops.triton.launching import programs_for

SIZE = 1024
"""Elements of a program."""


@triton.jit
def passing(x, bounds, n, SIZE: tl.constexpr):
    """The row of a program's SIZE elements, their columns and magnitudes, and whether they reach the row's bound."""
    programs = tl.cdiv(n, SIZE)
    row = (tl.program_id(0) // programs).to(tl.int64)
    at = (tl.program_id(0) % programs).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    size = tl.abs(tl.load(x + row * n + at, at < n, 0.0))
    return row, at, size, (at < n) & (size >= tl.load(bounds + row))


@triton.jit
def count_kernel(x, bounds, counts, n, SIZE: tl.constexpr):
    """Counts the elements of a program that reach the bound of their row."""
    _, _, _, passes = passing(x, bounds, n, SIZE)
    tl.store(counts + tl.program_id(0), tl.sum(tl.where(passes, 1, 0)))


@triton.jit
def candidates_kernel(x, bounds, ends, indices, magnitudes, n, capacity, k, SIZE: tl.constexpr):
    """Writes the candidates among a program's SIZE elements; ends (rows, programs) count the elements that reach the
    bound up to the end of each program."""
    row, at, size, passes = passing(x, bounds, n, SIZE)
    indices, magnitudes = indices + row * (capacity + k), magnitudes + row * (capacity + k)
    # number the elements that reach the bound, across programs
    before = tl.load(ends + tl.program_id(0) - 1, tl.program_id(0) % tl.cdiv(n, SIZE) > 0, 0)
    number = before + tl.cumsum(tl.where(passes, 1, 0), 0)
    # those come first, the others behind them
    place = tl.where(passes, number - 1, capacity + at - number)
    chosen = (at < n) & tl.where(passes, place < capacity, (at < capacity) & (place < capacity + k))
    tl.store(indices + place, at, chosen)
    tl.store(magnitudes + place, size, chosen)


def candidates(x: Tensor, bounds: Tensor, capacity: int, k: int) -> tuple[Tensor, Tensor]:
    """See the reference."""
    *lead, n = x.shape
    programs = bounds.numel() * programs_for(n, SIZE)
    # count by program
    counts = torch.empty(bounds.numel(), programs_for(n, SIZE), dtype=torch.int32, device=x.device)
    launching.launch(count_kernel, programs, x, bounds, counts, n, SIZE=SIZE)
    # write candidates at their places
    indices = torch.empty(*lead, capacity + k, dtype=torch.int64, device=x.device)
    magnitudes = torch.full(indices.shape, -1.0, dtype=torch.float32, device=x.device)
    ends = counts.cumsum(1, dtype=torch.int32)
    launching.launch(candidates_kernel, programs, x, bounds, ends, indices, magnitudes, n, capacity, k, SIZE=SIZE)
    return indices, magnitudes
