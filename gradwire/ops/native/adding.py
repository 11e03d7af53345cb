"""Error feedback, by itself or encoded in the same pass: see `gradwire.ops.reference.adding`."""

from collections.abc import Sequence
from ctypes import addressof, byref

import numpy as np
from torch import Tensor

from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks
from gradwire.ops.native.addresses import address, gradient_addresses, payload_address, typed_address
from gradwire.ops.native.library import library, scratch
from gradwire.ops.native.structs import AddendsStruct, blocks_struct, entries_struct, gradient_array
from gradwire.ops.noise import Seed
from gradwire.ops.vectors import Gradient


class _Sum:
    """The sum decay·old + weight·gradient as arguments of one call, for vectors (n,); keeps alive what the struct
    points to."""

    def __init__(
        self, next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, weight: float, n: int
    ) -> None:
        self._parts = gradient_array(gradient_addresses(gradient if float(weight) else None, n))
        kept, dtype = (0, 0) if old is None else typed_address("old", old, n)
        parts, count = addressof(self._parts), len(self._parts)
        self.struct = AddendsStruct(address("next", next, n), kept, parts, count, decay, weight, dtype)


def add_in(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, weight: float, *,
    nonfinite: Tensor | None = None,
) -> bool:  # fmt: skip
    """See the reference; the host knows whether the sum is finite, so `nonfinite` is not used."""
    terms = _Sum(next, old, gradient, decay, weight, len(next))
    return bool(library().gw_add_in(byref(terms.struct), len(next)))


def add_select(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, weight: float, layouts: Sequence[Entries],
    payloads: Tensor, *, nonfinite: Tensor | None = None,
) -> bool:  # fmt: skip
    """See the reference."""
    # one part: add up and select in one pass
    if len(layouts) == 1:
        return _add_select(next, old, gradient, decay, weight, layouts[0], payloads[0])
    # several parts of a vector that is added up already
    parts = next.split([layout.n for layout in layouts])
    each = zip(parts, layouts, payloads, strict=False)
    finite = [_add_select(part, part, None, 1.0, 1.0, layout, row) for part, layout, row in each]
    return all(finite)


def _add_select(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, weight: float, layout: Entries, payload: Tensor
) -> bool:
    c, struct = library(), entries_struct(layout)
    terms = _Sum(next, old, gradient, decay, weight, layout.n)
    workspace, to = scratch(c.gw_select_room(layout.n, layout.k)), payload_address("payload", payload, layout.nbytes)
    return bool(c.gw_add_select(byref(terms.struct), byref(struct), to, workspace))


def add_quantise(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, weight: float, layouts: Sequence[Blocks],
    payloads: Tensor, *, keep: bool, seeds: Sequence[Seed], nonfinite: Tensor | None = None,
) -> bool:  # fmt: skip
    """See the reference."""
    # one part: add up and quantise in one pass
    if len(layouts) == 1:
        return _add_quantise(next, old, gradient, decay, weight, layouts[0], payloads[0], keep, seeds[0])
    # several parts of a vector that is added up already
    parts = next.split([layout.numel for layout in layouts])
    each = zip(parts, layouts, payloads, seeds, strict=False)
    finite = [_add_quantise(part, part, None, 1.0, 1.0, layout, row, keep, seed) for part, layout, row, seed in each]
    return all(finite)


def _add_quantise(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, weight: float, layout: Blocks, payload: Tensor,
    keep: bool, seed: Seed,
) -> bool:  # fmt: skip
    blocks, terms = blocks_struct(layout), _Sum(next, old, gradient, decay, weight, layout.numel)
    scales = payload_address("payload", payload, layout.nbytes)
    # the state of numpy's generator, which the library advances as numpy does
    code = layout.code
    noise = np.random.SFC64(seed.number).state["state"]["state"] if code.has_noise else np.empty(0, np.uint64)
    # zero the bytes between and behind scales and codes
    for gap in layout.gaps:
        payload[gap].zero_()
    codes = scales + layout.codes_at
    return bool(library().gw_add_quantise(byref(terms.struct), byref(blocks), scales, codes, noise.ctypes.data, keep))
