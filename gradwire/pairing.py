"""Whether a compressor, a memory and a communicator work together, as the three parts of a group."""

from gradwire.communicators import Communicator
from gradwire.compressors import Compressor
from gradwire.memories import Memory
from gradwire.options import check_type


def check_parts(compressor: Compressor, memory: Memory, communicator: Communicator) -> None:
    """Raises ValueError, naming it, for what is no such part, and when the compressor cannot work with the memory or
    the communicator, for both where it is both."""
    check_type("compressor", compressor, (Compressor,), "gw.TopK(0.01)", optional=False)
    check_type("memory", memory, (Memory,), "gw.Residual()", optional=False)
    check_type("communicator", communicator, (Communicator,), "gw.AllGather()", optional=False)
    # do they work together?
    refusals: list[str] = []
    for part in (communicator, memory):
        try:
            part.check(compressor)
        except ValueError as error:
            refusals.append(str(error))
    if refusals:
        raise ValueError("; besides, ".join(refusals))
