# pyright: basic, reportMissingImports=false
"""The k largest magnitudes of vectors, exactly: see `gradwire.ops.reference.selecting.top_k`."""

import torch
from torch import Tensor

from gradwire.ops.sample import stride_of
from gradwire.ops.triton import launching
from gradwire.ops.triton.largest import (
    STATE,
    TILE,
    chosen_kernel,
    digits_kernel,
    list_kernel,
    sample_kernel,
    write_kernel,
)
from gradwire.ops.triton.launching import power_of_2, programs_for
from gradwire.ops.workspace import scratch_on

SAMPLE = 1 << 13
"""Elements of a sample, at most."""
WARPS = 16
"""Of the program that samples."""
LANES = 1024
"""Elements of lists that a program reads at a time."""
SLOTS = 16, 256
"""Of one list, at least and at most."""


class Lists:
    """The lists of the largest elements of `rows` vectors of n, in scratch: see `gradwire.ops.triton.largest`.

    `arguments` are those of a kernel that lists.
    """

    def __init__(self, device: torch.device, rows: int, n: int, k: int) -> None:
        self.shape = (rows, n)
        self.k = k
        self.tiles = programs_for(n, TILE.value)
        scratch, room = scratch_on(device), rows * self.tiles * TILE.value
        self.state = scratch.tensor("lists' state", (rows, STATE.value), torch.int32)
        self.keys = scratch.tensor("keys", (room,), torch.int32)
        self.places = scratch.tensor("places", (room,), torch.int16)
        self.counts = scratch.tensor("counts", (rows, self.tiles), torch.int32)
        self.arguments = self.state, self.keys, self.places, self.counts
        # as many elements of a list at a time as nearly all lists have
        least, most = SLOTS
        slots = min(most, max(least, power_of_2(programs_for(3 * TILE.value * k, 2 * n))))
        self._reads = {"TILES": LANES // slots, "SLOTS": slots}

    def sample(self, old: Tensor, gradient: Tensor, decay: float, weight: float | Tensor, **has: bool) -> None:
        """Bounds what is listed of the sums decay·old + weight·gradient, with near certainty from below."""
        rows, n = self.shape
        # the bound is four standard deviations further down than the sample's
        step = stride_of(n, SAMPLE)
        expected = self.k * programs_for(n, step) / n
        rank = int(expected + 4 * expected**0.5 + 4)
        launching.launch(
            sample_kernel, rows, old, gradient, decay, weight, n, self.k, step, rank, self.state, **has,
            SAMPLE=SAMPLE, num_warps=WARPS,
        )  # fmt: skip

    def indices(self, x: Tensor) -> Tensor:
        """The indices (rows, k) int64, ascending, of the k largest of vectors x (rows, n), which are listed."""
        (rows, n), device = self.shape, x.device
        programs = rows * programs_for(self.tiles, self._reads["TILES"])
        for number in range(3):
            launching.launch(digits_kernel, programs, x, *self.arguments, n, self.k, NUMBER=number, **self._reads)
        # count those of each tile
        sizes = torch.empty(rows, self.tiles, dtype=torch.int64, device=device)
        launching.launch(chosen_kernel, programs, self.state, self.keys, self.counts, sizes, n, **self._reads)
        # write them at their places
        indices = torch.empty(rows, self.k, dtype=torch.int64, device=device)
        launching.launch(
            write_kernel, programs, *self.arguments, sizes.cumsum(1), indices, n, self.k, **self._reads
        )  # fmt: skip
        return indices


def top_k(x: Tensor, k: int) -> Tensor:
    """See the reference; always k."""
    *lead, n = x.shape
    return largest_of(x.contiguous().view(-1, n), k).view(*lead, k) if k else x.new_empty(*lead, 0, dtype=torch.int64)


def largest_of(x: Tensor, k: int) -> Tensor:
    """`top_k` of vectors x (rows, n), one after another."""
    rows, n = x.shape
    lists = Lists(x.device, rows, n, k)
    lists.sample(x, x, 1.0, 1.0, HAS_OLD=True, HAS_GRADIENT=False, SCALED=False)
    launching.launch(list_kernel, rows * lists.tiles, x, *lists.arguments, n)
    return lists.indices(x)
