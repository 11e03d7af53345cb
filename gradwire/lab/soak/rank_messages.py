"""Messages between a rank and the driver of a long run: orders on standard input, reports on standard output."""

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.frontends import Handle


class UncheckedError(RuntimeError):
    """Raised where a rank is lost in a collective of the soak's own checks."""


@contextmanager
def checking() -> Iterator[None]:
    """Context for collectives of the soak's own checks."""
    try:
        yield
    except RuntimeError as error:
        raise UncheckedError(str(error)) from error


def summed(own: Tensor) -> Tensor:
    """The sum of all ranks' tensors, in place, for the soak's own checks."""
    with checking():
        dist.all_reduce(own)
    return own


class Orders:
    """Orders from the driver, lines of JSON on standard input; at its end the process ends."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        threading.Thread(target=self._listen, daemon=True).start()

    def take(self) -> list[dict[str, Any]]:
        """The orders since the last call."""
        return [json.loads(self._lines.popleft()) for _ in range(len(self._lines))]

    def _listen(self) -> None:
        self._lines.extend(sys.stdin)
        os._exit(1)  # the driver has ended


def delayed(orders: list[dict[str, Any]]) -> float:
    """Sleeps as a step does, longer where that is ordered; returns the factor of its loss, infinite for an overflow."""
    time.sleep(0.02 + sum(order["seconds"] for order in orders if order["do"] == "slow"))
    return torch.inf if any(order["do"] == "overflow" for order in orders) else 1.0


def obey(orders: list[dict[str, Any]], handle: Handle, held: list[Tensor]) -> None:
    """Leaves the job, or flips a bit of the tensors `held`, where that is ordered."""
    for order in orders:
        if order["do"] == "leave":
            handle.leave()
            os._exit(0)
        if order["do"] == "corrupt":
            _flip(held, order["bit"])


def _flip(parameters: list[Tensor], bit: int) -> None:
    """Flips a bit of the mantissa of one number."""
    bits = parameters[bit % len(parameters)].detach().view(-1).view(torch.int32)
    bits[bit // 8 % len(bits)] ^= 1 << bit % 23


def report(**facts: Any) -> None:
    """Writes facts, a line of JSON, to the driver."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
