"""A collective of each kind, with numbers that differ from rank to rank."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gradwire.collective import AllToAll, Broadcast, Collective, Gather, Message, SendReceive, Sum

WORLD = 3


def collectives(rank: int, n: int, place: Callable[[Tensor], Tensor]) -> list[Collective]:
    """Each kind; `place` puts a tensor on a device."""

    def message(*shape: int, first: float = -1.0) -> Message:
        return Message.plain(place(torch.arange(math.prod(shape)).float().add(first).view(shape)))

    return [
        Sum(message(n, first=rank)),
        Gather(message(n, first=10 * rank), message(WORLD, n)),
        AllToAll(message(WORLD, n, first=100 * rank), message(WORLD, n)),
        Broadcast(message(n, first=5 + rank), source=1),
        # the last rank takes no part
        SendReceive(message(n, first=50), message(n), *[(1, None), (None, 0), (None, None)][rank]),
    ]
