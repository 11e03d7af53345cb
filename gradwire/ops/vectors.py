"""Vectors in parts: a gradient or an output in several tensors, and parts of equal length in one call."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import TypeVar

from torch import Tensor

from gradwire.ops.entries import Entries
from gradwire.ops.host import on_host
from gradwire.torch_private.foreach import zero_each

_Part = TypeVar("_Part")
LONGEST = (1 << 31) - 1
"""The most elements of a vector that is compressed: kernels and payloads number them in 32 bits. Casts take any."""
Gradient = Tensor | Sequence[Tensor | int] | None
"""A flat gradient (n,); or tensors one after another, with a number for so many elements without a gradient; None for a
vector without one."""

Scalar = float | Tensor
"""A number, or a tensor () that the host does not read, such as the loss's scale on a GPU."""

Output = Tensor | Sequence[Tensor]
"""A flat float32 tensor (n,), or several, n elements one after another."""


def leave_out(tensors: Sequence[Tensor], weight: Scalar) -> None:
    """Zeroes tensors that were multiplied by a weight of 0, for 0·NaN is NaN."""
    if isinstance(weight, Tensor):
        nothing = weight == 0
        for tensor in tensors:
            tensor.masked_fill_(nothing, 0)
    elif not weight:
        zero_each(tensors)


def gradient_parts(gradient: Gradient, n: int) -> list[tuple[Tensor | None, int]]:
    """Each tensor of a gradient, None where there is none, and its length. Raises ValueError unless they have n
    elements."""
    if gradient is None:
        return [(None, n)]
    found: list[tuple[Tensor | None, int]] = [
        (None, part) if isinstance(part, int) else (part, part.numel()) for part in _listed(gradient)
    ]
    # a gradient of another size would be read past its end
    if (total := sum(length for _, length in found)) != n:
        raise ValueError(f"the gradient has {total} elements, the vector {n}; give a number where one is absent")
    return found


def placed_parts(gradient: Gradient, n: int) -> Iterator[tuple[int, Tensor | None, int]]:
    """`gradient_parts`, each with its first element."""
    start = 0
    for part, length in gradient_parts(gradient, n):
        yield start, part, length
        start += length


def outputs(out: Output, n: int) -> list[Tensor]:
    """The tensors of an output. Raises ValueError unless they have n elements."""
    parts = list(_listed(out))
    if (total := sum(part.numel() for part in parts)) != n:
        raise ValueError(f"the output has {total} elements, the payload's vector {n}")
    return parts


def _listed(parts: Tensor | Sequence[_Part]) -> Sequence[Tensor | _Part]:
    return [parts] if isinstance(parts, Tensor) else parts


def equal_keys(keys: Iterable[Hashable]) -> list[list[int]]:
    """The places of each distinct key, such as a shape."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    return list(places.values())


def split_output(out: Output, sizes: Sequence[int]) -> Sequence[Output]:
    """The output of each of several vectors of these sizes, one after another. Only a single one may be in parts."""
    if len(sizes) == 1:
        return [out]
    (whole,) = outputs(out, sum(sizes))
    return whole.split(sizes)


EntryParts = Iterable[tuple[Tensor, Tensor, Entries]]
"""Parts (m, n) of a vector as rows of a matrix, their payloads (m, ·), and the layout of these."""


def together(x: Tensor, payloads: Tensor, layouts: Sequence[Entries]) -> EntryParts:
    """The parts of x (n,), one after another, for one call each: on a CPU every part by itself, on a GPU neighbours of
    the same layout."""
    if not on_host(x.device):
        return equal_layouts(x, payloads, layouts)
    parts = x[None].split([layout.n for layout in layouts], 1)
    return zip(parts, payloads.split(1), layouts, strict=False)


def equal_layouts(x: Tensor, payloads: Tensor, layouts: Sequence[Entries]) -> EntryParts:
    """The parts of x (n,), neighbours of the same layout together."""
    row = start = 0
    for layout, same in groupby(layouts):
        # neighbours of one layout are the rows of a matrix
        count = len(list(same))
        end = start + count * layout.n
        yield x[start:end].view(count, layout.n), payloads[row : row + count], layout
        row, start = row + count, end


def equal_parts(x: Tensor, rows: Tensor, bounds: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """The parts of x (n,) between `bounds` as matrices (m, length), with a row of `rows` for each part: on a CPU each
    part by itself; on a GPU all as long as the first, and then the last, where that is shorter."""
    # a CPU: part by part
    if on_host(x.device):
        for row, (a, b) in zip(rows.split(1), pairwise(bounds), strict=False):
            if a < b:
                yield x[None, a:b], row
        return
    # a GPU: all parts of the first one's length, then the last
    length = max(1, bounds[1])
    whole = len(x) // length
    if whole:
        yield x[: whole * length].view(whole, length), rows[:whole]
    if whole * length < len(x):
        yield x[whole * length :][None], rows[whole : whole + 1]
