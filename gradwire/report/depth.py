"""One algorithm in depth: its paper, options, bytes sent, and state."""

from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

import torch

from gradwire.communicators import Communicator
from gradwire.compressors import Compressor
from gradwire.construct import exported, options_of
from gradwire.lab.catalogue import CatalogueEntry
from gradwire.memories import Memory
from gradwire.plans import Group, default_communicator, default_memory, sizes_follow_from_shapes
from gradwire.report.text_table import TextTable, figure, times
from gradwire.schedule.sent_bytes import wire_bytes
from gradwire.slots import Layout, Slot

WORLDS = (2, 4, 8, 64)
_MATRIX = Layout((Slot("weight", (1024, 1024), (1024, 1), torch.float32),))
SENT_NOTE = """kB that a rank sends in a step, and how many times fewer than dense by a ring all-reduce: of a weight of
1024 x 1024, 4.19 MB of gradient, by formula, with the default options."""


def facts(entry: CatalogueEntry) -> Mapping[str, str]:
    """Paper and options, as text; for a compressor also its memories, its communicators and its state."""
    known = {"paper": entry.paper, "options": entry.defaults}
    if entry.family and (made := default(entry.cls)):
        known |= {"sent by": _sent_by(made), "memory": _memory(made), "keeps": _kept(made)}
    return {name: text for name, text in known.items() if text}


def default(cls: type[Any] | None) -> Any:
    """An instance with the default options; None where it has none, or an option without a default."""
    base = (Compressor, Memory, Communicator)
    if cls is None or not issubclass(cls, base) or MISSING in options_of(cls).values():
        return None
    return cls()


def sent(entry: CatalogueEntry) -> TextTable | None:
    """Bytes that a rank sends; None where they depend on the gradient, and for entries that send nothing."""
    made = default(entry.cls)
    if not sizes_follow_from_shapes(made):
        return None
    ways = {type(way): way for way in (default_communicator(made), *_others(made))}
    rows = [[kind.__name__.lower(), *(_sent(made, way, world) for world in WORLDS)] for kind, way in ways.items()]
    return TextTable("Bytes sent", ["communicator", *(f"{world} ranks" for world in WORLDS)], rows)


def _sent(compressor: Compressor, way: Communicator, world: int) -> str:
    nbytes = wire_bytes(Group((), compressor, default_memory(compressor), way), _MATRIX, world)
    dense = 2 * (world - 1) * 4 * _MATRIX.numel / world
    return f"{figure(nbytes / 1e3)} ({times(dense / nbytes)})"


def _others(compressor: Compressor) -> list[Communicator]:
    """Those of the catalogue that take it."""
    return [way for cls in exported(Communicator).values() if (way := cls()).takes(compressor)]


def _sent_by(compressor: Compressor) -> str:
    usual = type(default_communicator(compressor)).__name__.lower()
    others = [name for way in _others(compressor) if (name := type(way).__name__.lower()) != usual]
    return f"{usual}; accepted by {', '.join(others)}" if others else usual


def _memory(compressor: Compressor) -> str:
    usual = type(default_memory(compressor)).__name__.lower()
    fitting = [name for name, cls in exported(Memory).items() if name != usual and cls().takes(compressor)]
    return f"{usual}; accepts {', '.join(fitting)}" if fitting else usual


def _kept(compressor: Compressor) -> str:
    kinds = [*default_memory(compressor).flat_state, *compressor.flat_state]
    if not kinds:
        return "nothing of the gradient's size"
    return f"{' and '.join(kinds)}: {8 * len(kinds)} bytes for each number of the gradient, old and new values of 4"
