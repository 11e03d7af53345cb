"""Checks of a group: that its three parts work together, and that its compressor takes its parameters."""

from collections.abc import Sequence
from dataclasses import is_dataclass

from gradwire.communicators import Communicator
from gradwire.compressors import FP32, Compressor
from gradwire.memories import RESIDUAL, Memory, NoMemory
from gradwire.ops.vectors import LONGEST
from gradwire.options import check_type
from gradwire.slots import Slot


def check_parts(compressor: Compressor, memory: Memory, communicator: Communicator) -> None:
    """Checks the three parts of a group. Raises ValueError, naming the part, for one of another kind, for an incomplete
    class of a user's, and for a memory or a communicator with which the compressor cannot work, or for both."""
    check_type("compressor", compressor, (Compressor,), "gw.TopK(0.01)", optional=False)
    check_type("memory", memory, (Memory,), "gw.Residual()", optional=False)
    check_type("communicator", communicator, (Communicator,), "gw.AllGather()", optional=False)
    # a user's own may lack something
    for part in (compressor, memory, communicator):
        if not is_dataclass(part):
            name = type(part).__name__
            raise ValueError(
                f"{name} is no dataclass, which plans are written by; put @dataclass(frozen=True) above it"
            )
        try:
            hash(part)
        except TypeError as error:
            raise ValueError(
                f"{part} has no hash, by which plans and profiles know it; write @dataclass(frozen=True), and options "
                "as tuples in place of lists"
            ) from error
    if memory.error_feedback and RESIDUAL not in memory.flat_state:
        raise ValueError(
            f"{type(memory).__name__}.flat_state has no {RESIDUAL!r}, in which what was not sent is kept; "
            f"write flat_state = {(RESIDUAL, *memory.flat_state)}"
        )
    # do they work together?
    refusals: list[str] = []
    for part in (communicator, memory):
        try:
            part.check(compressor)
        except ValueError as error:
            refusals.append(str(error))
    if refusals:
        raise ValueError("; besides, ".join(refusals))
    # each has state of its own
    for other, kept in (
        (memory, {RESIDUAL, *memory.flat_state}.intersection(compressor.flat_state)),
        (communicator, communicator.init_group().keys() & compressor.init_group().keys()),
    ):
        if kept:
            raise ValueError(
                f"{type(compressor).__name__} and {type(other).__name__} would both keep {min(kept)!r}, of which a "
                "group has one; give the compressor's another name"
            )


def dense_memory(memory: Memory) -> Memory:
    """The memory of what travels dense beside groups that have this one. Raises ValueError where it refuses that."""
    beside = memory.for_dense() or NoMemory()
    try:
        beside.check(FP32())
    except ValueError as error:
        raise ValueError(
            f"{type(memory).__name__} keeps momentum, so biases and what else travels dense get it too, which it "
            f"refuses ({error}); override its for_dense()"
        ) from error
    return beside


def check_group(slots: Sequence[Slot], compressor: Compressor) -> None:
    """Raises ValueError where a group's parameters are cut over different ranks, or have more elements than kernels
    number."""
    if other := next((slot for slot in slots if slot.cut != slots[0].cut), None):
        raise ValueError(
            f"the plan groups {slots[0].name!r} with {other.name!r}, which is cut over other ranks, and equal copies "
            "of one of them would part; make a group for each"
        )
    total, largest = sum(slot.numel for slot in slots), max(slots, key=lambda slot: slot.numel)
    if takes(compressor, total):
        return
    # one parameter by itself, or several
    if largest.numel > LONGEST:
        raise ValueError(
            f"parameter {largest.name!r} has {largest.numel:,} elements, and {compressor} takes fewer than 2^31; send "
            f'it dense, as by rules=[({largest.name!r}, gw.FP32()), ("*", ...)]'
        )
    raise ValueError(
        f"the group of {largest.name!r} has {total:,} elements, and {compressor} takes fewer than 2^31; make smaller "
        "groups, as by groups=gw.groups.of(megabytes=1024)"
    )


def takes(compressor: Compressor, numel: int) -> bool:
    """Whether the compressor takes so many elements in one group."""
    return compressor.is_cast or numel <= LONGEST
