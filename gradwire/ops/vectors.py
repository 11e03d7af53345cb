"""Vectors that lie in parts: a gradient per slot, or an output per slot."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise

from torch import Tensor

from gradwire.ops.entries import Entries
from gradwire.ops.host import on_host

Gradient = Tensor | Sequence[Tensor | int] | None
"""A flat gradient (n,); or one per slot, one after another, a number for so many elements that have none."""

Scalar = float | Tensor
"""What one rank's gradient counts in the mean; with a loss scale on a GPU a tensor ()."""

Output = Tensor | Sequence[Tensor]
"""A flat float32 tensor (n,), or parts that are n elements one after another."""


def gradient_parts(gradient: Gradient, n: int) -> list[tuple[Tensor | None, int]]:
    """Each part of the gradient, None where there is none, and its length; raises ValueError unless they are n."""
    if gradient is None:
        return [(None, n)]
    parts = [gradient] if isinstance(gradient, Tensor) else gradient
    found: list[tuple[Tensor | None, int]] = [
        (None, part) if isinstance(part, int) else (part, part.numel()) for part in parts
    ]
    if (total := sum(length for _, length in found)) != n:
        raise ValueError(f"the gradient has {total} elements, the vector {n}; give a number where one is absent")
    return found


def placed_parts(gradient: Gradient, n: int) -> Iterator[tuple[int, Tensor | None, int]]:
    """As `segments`, each after where it starts."""
    start = 0
    for part, length in gradient_parts(gradient, n):
        yield start, part, length
        start += length


def outputs(out: Output, n: int) -> list[Tensor]:
    """The parts of an output; raises ValueError unless they are n elements."""
    parts = [out] if isinstance(out, Tensor) else list(out)
    if (total := sum(part.numel() for part in parts)) != n:
        raise ValueError(f"the output has {total} elements, the payload's vector {n}")
    return parts


def equal_keys(keys: Iterable[Hashable]) -> list[list[int]]:
    """The places of equal keys, such as shapes."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    return list(places.values())


def split_output(out: Output, sizes: Sequence[int]) -> Sequence[Output]:
    """An output for each of several vectors of these sizes, one after another; all of it where there is one."""
    if len(sizes) == 1:
        return [out]
    assert isinstance(out, Tensor)
    return out.split(sizes)


EntryParts = Iterable[tuple[Tensor, Tensor, Entries]]
"""Vectors (m, n) that are parts of one, a payload of each, (m, ·), and how these are laid out."""


def together(x: Tensor, payloads: Tensor, layouts: Sequence[Entries]) -> EntryParts:
    """The parts of x (n,), one after another, that are worked on at a time: on a CPU each by itself, on a GPU
    neighbours of the same layout."""
    if not on_host(x.device):
        return equal_layouts(x, payloads, layouts)
    parts = x[None].split([layout.n for layout in layouts], 1)
    return zip(parts, payloads.split(1), layouts, strict=False)


def equal_layouts(x: Tensor, payloads: Tensor, layouts: Sequence[Entries]) -> EntryParts:
    """`together`, neighbours of the same layout."""
    row = start = 0
    for layout, alike in groupby(layouts):
        count = len(list(alike))
        end = start + count * layout.n
        yield x[start:end].view(count, layout.n), payloads[row : row + count], layout
        row, start = row + count, end


def equal_parts(x: Tensor, rows: Tensor, bounds: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """x (n,) cut at `bounds`, as matrices (m, length), and a row for each part: on a CPU each part by itself; on a GPU
    those that are as long as the first, and behind them, where it is shorter, the last."""
    if on_host(x.device):
        for row, (a, b) in zip(rows.split(1), pairwise(bounds), strict=False):
            if a < b:
                yield x[None, a:b], row
        return
    length = max(1, bounds[1])
    whole = len(x) // length
    if whole:
        yield x[: whole * length].view(whole, length), rows[:whole]
    if whole * length < len(x):
        yield x[whole * length :][None], rows[whole : whole + 1]
