"""A transport of one rank without others, which records the collectives and counts their bytes."""

import json

from gradwire.collective import AllToAll, Broadcast, Collective, Gather, SendReceive, Sum
from gradwire.transports.transport import Done, Pending, Transport


class Echo:
    """A store in which all other ranks set the same texts as this one."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._texts: dict[str, str] = {}
        self._numbers: dict[str, int] = {}

    def set(self, key: str, value: str) -> None:
        # a topic's text, whichever rank sets it
        topic, _, who = key.rpartition("/")
        if who != "everyone":
            self._texts[topic] = value

    def get(self, key: str, timeout_s: float) -> str | None:
        text = self._texts.get(key.rpartition("/")[0])
        if not text or not key.endswith("/everyone"):
            return text
        host, facts = json.loads(text)
        # rank 0's answer at a meeting: all ranks have this rank's facts
        return json.dumps({"hosts": [host], "facts": [facts], "ranks": [(0, 0)] * self._world})

    def add(self, key: str, number: int) -> int:
        self._numbers[key] = self._numbers.get(key, 0) + number
        return self._numbers[key]


class Recording(Transport):
    """One rank of `world` whose peers all have the same gradient; `ops` are the collectives that it started."""

    def __init__(self, world: int, rank: int = 0) -> None:
        self.world, self.rank, self.store = world, rank, Echo(world)
        self.ops: list[Collective] = []

    @property
    def wire_bytes(self) -> int:
        """The bytes that the rank would have sent."""
        return sum(op.wire_bytes(self.world) for op in self.ops)

    def start(self, op: Collective) -> Pending:
        self.ops.append(op)
        send, receive = op.send.whole, op.receive.whole
        # what the collective would give if all ranks had sent this
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
