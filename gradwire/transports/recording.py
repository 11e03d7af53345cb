"""Nobody else is there: what would be sent is written down and counted."""

from gradwire.collective import AllToAll, Broadcast, Collective, Gather, SendReceive, Sum
from gradwire.transports.transport import Done, Pending, Transport


class Echo:
    """A store in which the others say what this rank says, and agree."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._said: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        topic, _, who = key.rpartition("/")
        if who != "everyone":
            self._said[topic] = value

    def get(self, key: str, timeout_s: float) -> str | None:
        said = self._said.get(key.rpartition("/")[0])
        return f"[{','.join([said] * self._world)}]" if said and key.endswith("/everyone") else said


class Recording(Transport):
    """Plays one rank of `world` whose peers all have the same gradient; `ops` are the collectives it started."""

    def __init__(self, world: int, rank: int = 0) -> None:
        self.world, self.rank, self.store = world, rank, Echo(world)
        self.ops: list[Collective] = []

    @property
    def wire_bytes(self) -> int:
        """What the rank would have sent."""
        return sum(op.wire_bytes(self.world) for op in self.ops)

    def start(self, op: Collective) -> Pending:
        self.ops.append(op)
        send, receive = op.send.whole, op.receive.whole
        match op:
            case Sum():
                send.mul_(self.world)
            case Gather():
                receive.copy_(send.expand_as(receive))
            case AllToAll():
                receive.copy_(send[self.rank].expand_as(receive))
            case SendReceive():
                if op.source is not None:
                    receive.copy_(send)
            case Broadcast():
                pass
        return Done()
