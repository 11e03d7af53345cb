"""Nobody else is there: what would be sent is written down and counted."""

from gradwire.collective import Broadcast, Collective, Exchange, Gather, Hop, Idle, Local, Sum
from gradwire.transports.base import Done, Pending, Transport


class Recording(Transport):
    """Plays one rank of `world` whose peers all have the same gradient; `ops` are the collectives it started."""

    def __init__(self, world: int, rank: int = 0) -> None:
        self.world, self.rank = world, rank
        self.ops: list[Collective] = []

    @property
    def wire_bytes(self) -> int:
        """What the rank would have sent."""
        return sum(op.wire_bytes(self.world) for op in self.ops)

    def start(self, op: Collective) -> Pending:
        self.ops.append(op)
        match op:
            case Sum(tensor):
                tensor.mul_(self.world)
            case Gather(send, receive):
                receive.copy_(send.expand_as(receive))
            case Exchange(send, receive):
                receive.copy_(send[self.rank].expand_as(receive))
            case Hop(send, receive, _, source):
                if source is not None:
                    receive.copy_(send)
            case Broadcast() | Local() | Idle():
                pass
        return Done()
