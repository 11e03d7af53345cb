"""Vectors that lie in parts: a gradient per slot, or an output per slot."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import groupby

from torch import Tensor

from gradwire.ops.entries import Entries

Gradient = Tensor | Sequence[Tensor | int] | None
"""A flat gradient (n,); or one per slot, one after another, a number for so many elements that have none."""

Share = float | Tensor
"""What one rank's gradient counts in the mean; with a loss scale on a GPU a tensor ()."""

Output = Tensor | Sequence[Tensor]
"""A flat float32 tensor (n,), or parts that are n elements one after another."""


def segments(gradient: Gradient, n: int) -> list[tuple[Tensor | None, int]]:
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


def placed(gradient: Gradient, n: int) -> Iterator[tuple[int, Tensor | None, int]]:
    """As `segments`, each after where it starts."""
    start = 0
    for part, length in segments(gradient, n):
        yield start, part, length
        start += length


def outputs(out: Output, n: int) -> list[Tensor]:
    """The parts of an output; raises ValueError unless they are n elements."""
    parts = [out] if isinstance(out, Tensor) else list(out)
    if (total := sum(part.numel() for part in parts)) != n:
        raise ValueError(f"the output has {total} elements, the payload's vector {n}")
    return parts


def alike(keys: Iterable[Hashable]) -> list[list[int]]:
    """The places of equal keys, such as shapes."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    return list(places.values())


def alike_parts(rows: Tensor, layouts: Sequence[Entries]) -> Iterator[tuple[Entries, Tensor, int, int]]:
    """Each layout, neighbours that are alike together, with their rows, and where their parts of a vector begin and
    end."""
    row = start = 0
    for layout, alike in groupby(layouts):
        count = len(list(alike))
        yield layout, rows[row : row + count], start, start + count * layout.n
        row, start = row + count, start + count * layout.n


def equal_parts(x: Tensor, rows: Tensor, bounds: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """x (n,) cut at `bounds`, and a row for each part, in matrices: the parts that are as long as the first, and behind
    them, where it is shorter, the last."""
    length = max(1, bounds[1])  # of no elements there are no parts
    whole = len(x) // length
    yield x[: whole * length].view(whole, length), rows[:whole]
    if whole * length < len(x):
        yield x[whole * length :][None], rows[whole : whole + 1]
