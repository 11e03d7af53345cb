"""A rank alone, as if all other ranks did the same as it does: their store, the messages that come from them, and a
transport that records and counts what the rank sends."""

import json
from collections.abc import Sequence

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
        return json.dumps({"hosts": [host], "facts": [facts], "ranks": [(0, 0)] * self._world, "training": ""})

    def add(self, key: str, number: int) -> int:
        self._numbers[key] = self._numbers.get(key, 0) + number
        return self._numbers[key]

    def check(self, keys: Sequence[str]) -> bool:
        return all(self.get(key, 0) for key in keys)

    def delete(self, key: str) -> None:
        self._texts.pop(key.rpartition("/")[0], None)


def echo(op: Collective, rank: int, world: int) -> None:
    """Writes to the tensors of `op` the messages that would have come, had all ranks sent the same as this `rank`; of
    payloads of different parts, this rank's own."""
    send, receive = op.send.whole, op.receive.whole
    match op:
        case Sum():
            send.mul_(world)
        case Gather() if op.parts:
            # parts that differ: the others' as this rank sent them, its own as it encoded the sum
            receive.copy_(op.parts.whole)
            receive[rank].copy_(send)
        case Gather():
            receive.copy_(send.expand_as(receive))
        case AllToAll():
            # from every rank what this one sends itself
            receive.copy_(send[rank].expand_as(receive))
        case SendReceive(source=None) | Broadcast():
            pass
        case SendReceive():
            receive.copy_(send)


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
