"""The bytes that a way to send puts on the wire: of a group, and of what a group may have."""

from collections.abc import Sequence
from math import prod

import numpy as np
import torch

from gradwire.compressors import FixedSizeCompressor
from gradwire.plans import Group
from gradwire.schedule.costs import Array, CostTable
from gradwire.slots import Layout, Slot

Shapes = Sequence[tuple[int, ...]]
STEADY = 1 << 20
"""A step by which warm-ups are over."""


def wire_bytes(way: Group, layout: Layout, hosts: int) -> int:
    """Bytes that one of `hosts` sends per step, on average, of a group with this layout, once warm-ups are over."""
    steps = range(STEADY, STEADY + way.compressor.period)
    return sum(way.communicator.wire(way.compressor, layout, hosts, step).wire_bytes for step in steps) // len(steps)


def bytes_of_elements(way: Group, shapes: Shapes, hosts: int) -> CostTable:
    """Bytes on the wire against elements, up to those of all slots."""
    # enough sizes to follow steps in a payload's size
    sizes = np.unique(np.geomspace(1, max(2, sum(map(prod, shapes))), 64).astype(int))
    nbytes = [wire_bytes(way, layout_of([(int(n),)]), hosts) for n in sizes]
    # no elements, no bytes
    return CostTable.of(np.append(0.0, sizes), np.append(0.0, nbytes))


def bytes_of_slots(way: Group, shapes: Shapes, hosts: int) -> Array:
    """Each slot's part (N,) of the bytes on the wire, by its payload: what frames and pads a message is the group's."""
    assert isinstance(way.compressor, FixedSizeCompressor)
    payloads = np.array([way.compressor.slot_bytes(slot) for slot in layout_of(shapes).slots])
    return payloads * (wire_bytes(way, layout_of(shapes), hosts) / max(1.0, payloads.sum()))


def layout_of(shapes: Shapes) -> Layout:
    """Slots of these shapes, as float32."""
    return Layout(tuple(
        Slot("", shape, tuple(prod(shape[axis + 1 :]) for axis in range(len(shape))), torch.float32) for shape in shapes
    ))  # fmt: skip
