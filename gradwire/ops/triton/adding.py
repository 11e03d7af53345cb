# pyright: basic, reportMissingImports=false
"""Error feedback, by itself or encoded in the same launch: see `gradwire.ops.reference.adding`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.ops import reference
from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks
from gradwire.ops.noise import Seed
from gradwire.ops.reference.adding import gathered
from gradwire.ops.triton import launching
from gradwire.ops.triton.codes import quantise_kernel
from gradwire.ops.triton.entries import move_to_zeros
from gradwire.ops.triton.largest import add_list_kernel
from gradwire.ops.triton.launching import programs_for
from gradwire.ops.triton.selecting import Lists, largest_of
from gradwire.ops.triton.sums import add_kernel, mask_kernel
from gradwire.ops.triton.tables import constants_of, shape_of, table_of
from gradwire.ops.vectors import Gradient, Scalar, equal_layouts
from gradwire.ops.workspace import scratch_on

LONGEST = 8192
"""The elements of the longest blocks that a program quantises."""
SIZE = 2048
"""Elements of a program."""


class _Terms:
    """The sum decay·old + weight·gradient as arguments of a kernel. Pointers that are not needed get a dummy.

    `tensors` and `numbers` are arguments, `has` the constants that say which of them are used.
    """

    def __init__(
        self, next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, weight: Scalar,
        nonfinite: Tensor | None,
    ) -> None:  # fmt: skip
        # gather the gradient's tensors, in torch
        source = gathered(next, gradient)
        flag = scratch_on(next.device).tensor("ignored", (1,)) if nonfinite is None else nonfinite
        self.tensors = next, next if old is None else old, next if source is None else source.view(-1), flag
        self.numbers = decay, weight
        self.has = {
            "HAS_OLD": old is not None, "HAS_GRADIENT": source is not None, "SCALED": isinstance(weight, Tensor)
        }  # fmt: skip


def add_in(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, weight: Scalar, *,
    nonfinite: Tensor | None = None,
) -> bool:  # fmt: skip
    """See the reference."""
    terms, n = _Terms(next, old, gradient, decay, weight, nonfinite), len(next)
    launching.launch(add_kernel, programs_for(n, SIZE), *terms.tensors, *terms.numbers, n, **terms.has, SIZE=SIZE)
    return True


def add_select(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, weight: Scalar, layouts: Sequence[Entries],
    payloads: Tensor, *, nonfinite: Tensor | None = None,
) -> bool:  # fmt: skip
    """See the reference. Parts of the same layout take as many launches as one."""
    if len(layouts) > 1:
        return _select_parts(next, payloads, layouts)
    layout, payload = layouts[0], payloads[0]
    terms, n = _Terms(next, old, gradient, decay, weight, nonfinite), len(next)
    lists = Lists(next.device, 1, n, layout.k)
    lists.sample(*terms.tensors[1:3], *terms.numbers, **terms.has)
    # add up, list the largest, and zero the payload's bits, which are set one by one
    zeros = payload[: layout.values_at if layout.exact else layout.nbytes].view(torch.int32)
    launching.launch(
        add_list_kernel, lists.tiles, *terms.tensors, *terms.numbers, n, *lists.arguments, zeros, len(zeros),
        **terms.has,
    )  # fmt: skip
    # select and pack
    move_to_zeros(next[None], payload[None], layout, lists.indices(next[None]))
    return True


def _select_parts(x: Tensor, rows: Tensor, layouts: Sequence[Entries]) -> bool:
    rows.zero_()
    for parts, payloads, layout in equal_layouts(x, rows, layouts):
        move_to_zeros(parts, payloads, layout, largest_of(parts, layout.k))
    return True


def mask_zeros(x: Tensor, other: Tensor) -> None:
    """See the reference."""
    launching.launch(mask_kernel, programs_for(len(x), SIZE), x, other, len(x), SIZE=SIZE)


def add_quantise(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, weight: Scalar, layouts: Sequence[Blocks],
    payloads: Tensor, *, keep: bool, seeds: Sequence[Seed], nonfinite: Tensor | None = None,
) -> bool:  # fmt: skip
    """See the reference, which does long blocks; all parts in one launch. One seed is enough for all, for an element's
    noise depends on its index. Bytes between and behind scales and codes stay as they were."""
    code, device = layouts[0].code, payloads.device
    rows, width, warps = shape_of(code)
    if width > LONGEST:
        return reference.adding.add_quantise(
            next, old, gradient, decay, weight, layouts, payloads, keep=keep, seeds=seeds, nonfinite=nonfinite
        )
    # add up, and find where the blocks of each program lie
    terms = _Terms(next, old, gradient, decay, weight, nonfinite)
    table = table_of(layouts, payloads.stride(0), rows * code.block, device)
    word, salt = seeds[0].on(device) if code.has_noise else (table, 0)
    launching.launch(
        quantise_kernel, len(table), *terms.tensors, *terms.numbers, table, payloads, word, salt, **terms.has,
        KEEP=keep, **constants_of(code), ROWS=rows, WIDTH=width, num_warps=warps,
    )  # fmt: skip
    return True
