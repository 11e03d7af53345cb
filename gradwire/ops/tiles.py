"""Tiles: parts of long vectors that stay in a CPU's cache."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from gradwire.ops.workspace import Workspace

TILE = 1 << 18
"""Elements of a tile on a CPU: temporaries stay in cache and out of the allocator. (glibc returns blocks above 32 MB to
the system at every free, which costs more than the arithmetic.)"""


def tile_of(x: Tensor) -> int:
    """Elements of a tile of x: on a GPU all, for there every call costs more than its memory traffic."""
    return TILE if x.device.type == "cpu" else max(1, x.numel())


def tile_bounds(x: Tensor) -> list[tuple[int, int]]:
    """The bounds (start, end) of the tiles of x (n,)."""
    n, tile = len(x), tile_of(x)
    return [(start, min(start + tile, n)) for start in range(0, n, tile)]


def tiles(x: Tensor, block: int) -> list[tuple[int, int, int]]:
    """The tiles of x (n,) as matrices of whole blocks, (start, rows, width) each, and a last one of a single row, for a
    shorter block."""
    n = len(x)
    rows_per_tile = max(1, tile_of(x) // block)
    # whole blocks, then the shorter one
    whole = n // block
    found = [(row * block, min(rows_per_tile, whole - row), block) for row in range(0, whole, rows_per_tile)]
    if n % block:
        found.append((whole * block, 1, n % block))
    return found


def padded_rows(x: Tensor, width: int, scratch: Workspace) -> Iterator[tuple[int, Tensor]]:
    """Vectors x (m, n) as rows (m, ·, width), each time with the number of the first row; zeros fill up the last row.
    On a CPU, of one vector, as many rows at a time as fit its cache; on a GPU all."""
    (m, n), count = x.shape, -(-x.shape[1] // width)
    # a GPU: all rows at once, padded if need be
    if x.device.type != "cpu":
        # zeros behind the last element of each vector
        if count * width > n:
            padded = scratch.tensor("padded", (m, count * width))
            padded[:, :n].copy_(x)
            padded[:, n:].zero_()
            x = padded
        yield 0, x.view(m, count, width)
        return
    # a CPU: tile by tile, of which the last may be padded
    for start, rows, filled in tiles(x[0], width):
        part = x[:, start : start + rows * filled].view(m, rows, filled)
        if filled < width:
            padded = scratch.tensor("padded", (1, 1, width)).zero_()
            padded[..., :filled] = part
            part = padded
        yield start // width, part


def add_rows(out: Tensor, indices: Tensor, values: Tensor, rows: int) -> None:
    """out[index] += value for the entries of so many payloads, equally many of each, payload by payload. Within one all
    indices differ, so every replica rounds the same way."""
    for places, added in zip(indices.view(rows, -1), values.view(rows, -1), strict=True):
        out.index_add_(0, places, added)


def at_once(payloads: Tensor) -> Sequence[Tensor]:
    """Payloads (ranks, ·) in groups to decode at a time: on a CPU each by itself, so that temporaries stay in its
    cache."""
    return payloads.split(1) if payloads.device.type == "cpu" else [payloads]
