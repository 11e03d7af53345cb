"""The rule by which ranks of a new number go on from the states of old ranks."""

from typing import NamedTuple


class Predecessors(NamedTuple):
    """The old ranks that a new rank goes on from."""

    own: int
    """The one as which it goes on: it takes that rank's small state, and with local steps its parameters."""
    memories: slice
    """Those whose memories it adds up."""


def predecessors(rank: int, ranks: int, old: int) -> Predecessors:
    """The rule by which `ranks` ranks, or replicas, go on from `old` ones: `rank` goes on as old rank `rank` modulo
    `old` did, and adds up the memories of ceil(old / ranks) neighbours, of fewer, or of none, as distributed
    checkpoints deal rows. So no memory is lost, and as many ranks as before get back their own."""
    most = -(-old // ranks)
    return Predecessors(rank % old, slice(min(old, rank * most), min(old, (rank + 1) * most)))
