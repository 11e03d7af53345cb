"""Groups in flight: started in the plan's order, moved on in an order that depends on the plan alone."""

from collections import deque
from dataclasses import dataclass

from torch import Tensor

from gradwire.clock import Mark
from gradwire.collective import Collective
from gradwire.compressors import Reduction
from gradwire.recorder import Recorder
from gradwire.reducer import Reducer
from gradwire.transports import Pending, Transport

IN_FLIGHT = 2


class ReductionError(RuntimeError):
    """A group could not be reduced; the message names the group and the rank at fault."""


@dataclass(frozen=True)
class Flight:
    """A group whose collective is on the wire."""

    reducer: Reducer
    reduction: Reduction
    op: Collective
    pending: Pending
    started: Mark


class Flights:
    """While one group is on the wire the next is encoded. Raises ReductionError where a group fails or a rank is
    lost. `wire_bytes` counts what was handed to the network."""

    def __init__(self, transport: Transport, recorder: Recorder) -> None:
        self.transport, self.recorder = transport, recorder
        self.wire_bytes = 0
        self._flights: deque[Flight] = deque()

    def start(self, reducer: Reducer) -> None:
        """Encodes a group whose gradients are there, and starts its first collective."""
        self._advance(reducer, reducer.reduce(), None)

    def make_room(self) -> None:
        """A group that started pushes the oldest one on: with two rounds each, the second round of one group
        follows the first of the next, and none is left over for the end of the step."""
        if len(self._flights) >= IN_FLIGHT:
            self._resume()
        while len(self._flights) > IN_FLIGHT:
            self._resume()

    def land(self) -> None:
        """Returns when no group is in flight any more."""
        while self._flights:
            self._resume()

    def forget(self) -> None:
        """Gives up what is in flight."""
        self._flights.clear()

    def why(self, error: RuntimeError) -> str:
        """What another rank said when it gave up, or that one was lost."""
        return self.transport.failure() or f"a rank was lost ({error})"

    def _resume(self) -> None:
        flight = self._flights.popleft()
        try:
            flight.pending.wait()
        except RuntimeError as error:
            raise self._lost(flight.reducer, error) from error
        wire_bytes, name = flight.op.wire_bytes(self.transport.world), type(flight.op).__name__
        self.recorder.add("wire", flight.started, flight.reducer.index, label=name, wire_bytes=wire_bytes)
        self._advance(flight.reducer, flight.reduction, flight.op.result)

    def _advance(self, reducer: Reducer, reduction: Reduction, result: Tensor | None) -> None:
        start = self.recorder.mark()
        try:
            op = next(reduction) if result is None else reduction.send(result)
        except StopIteration:
            self.recorder.add("decode", start, reducer.index)
            return
        except Exception as error:
            raise ReductionError(
                f"reducing {_describe(reducer)} failed on rank {self.transport.rank}: {type(error).__name__}: {error}"
            ) from error
        issued = self.recorder.add("encode", start, reducer.index)
        self.wire_bytes += op.wire_bytes(self.transport.world)
        try:
            pending = self.transport.start(op)
        except RuntimeError as error:
            raise self._lost(reducer, error) from error
        self._flights.append(Flight(reducer, reduction, op, pending, issued))

    def _lost(self, reducer: Reducer, error: RuntimeError) -> ReductionError:
        return ReductionError(f"reducing {_describe(reducer)} ended: {self.why(error)}")


def _describe(reducer: Reducer) -> str:
    names = [slot.name for slot in reducer.layout.slots]
    size = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"the group of {names[0]!r}{size} ({reducer.group.compressor})"
