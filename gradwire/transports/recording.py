"""A transport of one rank without others, which records the collectives and counts their bytes."""

from gradwire.collective import Collective
from gradwire.transports.echo import Echo, echo
from gradwire.transports.transport import Done, Pending, Transport


class SizeRecorder(Transport):
    """One rank of `world` whose peers all have the same gradient; `ops` are the collectives that it started."""

    def __init__(self, world: int, rank: int = 0) -> None:
        self.world = world
        self.rank = rank
        self.store = Echo(world)
        self.ops: list[Collective] = []

    @property
    def wire_bytes(self) -> int:
        """The bytes that the rank would have sent."""
        return sum(op.wire_bytes(self.world) for op in self.ops)

    def start(self, op: Collective) -> Pending:
        self.ops.append(op)
        echo(op, self.rank, self.world)
        return Done()
