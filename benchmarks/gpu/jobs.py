"""Whole jobs on the card, of ranks that are threads or of one rank whose peers are played, as the tests have them."""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import lcm
from threading import Lock
from typing import Any

import torch
from torch import Tensor

import gradwire as gw
from benchmarks.gpu.device import Device
from gradwire.collective import Collective
from gradwire.slots import Slot
from gradwire.transports import Pending
from tests.support import harness
from tests.support.cases import CASES, FEW, Case
from tests.support.fixed import PARAMETERS, Fixed
from tests.support.harness import plan_of, slots_of

WORLD = 2
SLOTS = slots_of(PARAMETERS | {"wide.weight": torch.empty(301, 257)})
"""More than one block of everything."""


class Synchronised(gw.Threads):
    """Ranks that are threads, each with a stream of its own on one GPU; the host waits for none."""

    came: "_Came"

    @classmethod
    def group(cls, world: int) -> list[Any]:
        ranks, came = super().group(world), _Came()
        for rank in ranks:
            rank.came = came  # pyright: ignore
        return ranks

    def start(self, op: Collective) -> Pending:
        number, stream = len(self.started), torch.cuda.current_stream()
        with self.came.lock:
            # the last one to come carries out for all, behind what they have sent
            for event in self.came.events[number]:
                stream.wait_event(event)
            pending = super().start(op)
            self.came.events[number].append(stream.record_event())
        return _Received(pending, self.came, number)


class _Came:
    """The events at which ranks came to each collective; the last one's is behind its work."""

    def __init__(self) -> None:
        self.lock, self.events = Lock(), defaultdict[int, list[torch.cuda.Event]](list)


class _Received:
    """A collective that another rank's stream may have carried out."""

    def __init__(self, pending: Pending, came: _Came, number: int) -> None:
        self._pending, self._came, self._number = pending, came, number

    def wait(self) -> None:
        self._pending.wait()
        with self._came.lock:
            torch.cuda.current_stream().wait_event(self._came.events[self._number][-1])


class OnCard(Fixed):
    """A job on a GPU that is there."""

    device = torch.device("cuda", 0)

    def there(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device)

    def finish(self) -> None:
        super().finish()
        torch.cuda.synchronize()

    def skip(self) -> None:
        super().skip()
        torch.cuda.synchronize()


def cases(device: Device) -> list[Case]:
    """The rows of the table, one for each compressor and each communicator first."""
    first = [case for case in CASES if case in FEW]
    return (
        [case for case in first if case.compressor == gw.TopK(0.05)][:1]
        if device.tiny
        else first + [case for case in CASES if case not in FEW]
    )


def plan(case: Case, slots: Sequence[Slot] = SLOTS, groups: int = 2) -> gw.Plan:
    """Groups of every second slot, so that they are not what lies side by side."""
    return plan_of(slots, case.compressor, case.memory, case.communicator, groups=groups)


def steps_until_recorded(case: Case, world: int) -> int:
    """Steps after which all phases of a row have come, for both halves of its state, and been replayed."""
    return lcm(case.phases(world), 2) + 5


@contextmanager
def job(device: Device, plan: gw.Plan, *, records: bool, transports: Sequence[gw.Transport] = ()) -> Iterator[Fixed]:
    """A job of WORLD threads, or of a rank for each of these transports; its turns are recorded, or computed each
    time."""
    with ExitStack() as stack:
        if device.is_gpu:
            os.environ["GRADWIRE_GRAPHS"] = "1" if records else "0"
            harness.WAIT_S = 60  # a step's kernels may be compiled in it
            kind: Any = OnCard
            ranks: Sequence[gw.Transport] = transports or Synchronised.group(WORLD)
        else:
            from tests.support.tape import taped

            stack.enter_context(taped(records=records))
            kind, ranks = Fixed, transports or gw.Threads.group(WORLD)
        running = kind(plan, SLOTS, len(ranks), transports=ranks)
        stack.callback(running.close)
        running.begin()
        yield running
