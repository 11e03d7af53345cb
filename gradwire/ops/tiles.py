"""Cutting long vectors into pieces that stay in a CPU's cache."""

from torch import Tensor

TILE = 1 << 18
"""Elements worked on at a time on a CPU: temporaries stay in cache and out of the allocator. (glibc returns blocks
above 32 MB to the system at every free, which costs more than the arithmetic.)"""


def tile_of(x: Tensor) -> int:
    """Elements of x to work on at a time: on a GPU all, for there every call costs more than its memory traffic."""
    return TILE if x.device.type == "cpu" else max(1, x.numel())


def spans(x: Tensor) -> list[tuple[int, int]]:
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
