"""Cutting long vectors into pieces that stay in a CPU's cache."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from gradwire.ops.workspace import Workspace

TILE = 1 << 18
"""Elements worked on at a time on a CPU: temporaries stay in cache and out of the allocator. (glibc returns blocks
above 32 MB to the system at every free, which costs more than the arithmetic.)"""


def tile_of(x: Tensor) -> int:
    """Elements of x to work on at a time: on a GPU all, for there every call costs more than its memory traffic."""
    return TILE if x.device.type == "cpu" else max(1, x.numel())


def tile_bounds(x: Tensor) -> list[tuple[int, int]]:
    """Cuts x (n,) into tiles: (start, end) each."""
    n, tile = len(x), tile_of(x)
    return [(start, min(start + tile, n)) for start in range(0, n, tile)]


def tiles(x: Tensor, block: int) -> list[tuple[int, int, int]]:
    """Cuts x (n,) into tiles of whole blocks: (start, rows, width) of a (rows, width) matrix each, and a last row that
    holds what is left over."""
    n = len(x)
    rows_per_tile = max(1, tile_of(x) // block)
    whole = n // block
    pieces = [(row * block, min(rows_per_tile, whole - row), block) for row in range(0, whole, rows_per_tile)]
    if n % block:
        pieces.append((whole * block, 1, n % block))
    return pieces


def padded_rows(x: Tensor, width: int, scratch: Workspace) -> Iterator[tuple[int, Tensor]]:
    """Vectors x (m, n) as rows (m, ·, width), the last of which zeros fill up, each after the number of its first: of
    one vector on a CPU as many at a time as fit its cache; on a GPU all."""
    (m, n), count = x.shape, -(-x.shape[1] // width)
    if x.device.type != "cpu":
        if count * width > n:
            room = scratch.tensor("padded", (m, count * width))
            room[:, :n].copy_(x)
            room[:, n:].zero_()
            x = room
        yield 0, x.view(m, count, width)
        return
    for start, rows, filled in tiles(x[0], width):
        part = x[:, start : start + rows * filled].view(m, rows, filled)
        if filled < width:
            padded = scratch.tensor("padded", (1, 1, width)).zero_()
            padded[..., :filled] = part
            part = padded
        yield start // width, part


def add_rows(out: Tensor, indices: Tensor, values: Tensor, rows: int) -> None:
    """out[index] += value, one after another, for equally many of each of so many payloads: in one of them all indices
    differ, so every replica rounds the same way."""
    for places, added in zip(indices.view(rows, -1), values.view(rows, -1), strict=True):
        out.index_add_(0, places, added)


def at_once(payloads: Tensor) -> Sequence[Tensor]:
    """Payloads (ranks, ·) to work on at a time: on a CPU each by itself, as temporaries then stay in its cache."""
    return payloads.split(1) if payloads.device.type == "cpu" else [payloads]
