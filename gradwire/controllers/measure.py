"""What a way to send a group costs on this job: seconds of encoding, wire and decoding, on the network it runs on."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from zlib import crc32

import torch
from torch import Tensor

from gradwire.collective import Broadcast, Local, Sum
from gradwire.compressors import Workspace
from gradwire.layout import Slot
from gradwire.plan import Group
from gradwire.reducer import Reducer, Site
from gradwire.transports import Transport


@dataclass(frozen=True)
class Sample:
    """One reduction alone on the network: of `elements`, of which each rank sent `wire_bytes` in `wire_s`; inside the
    host `local_s`."""

    elements: int
    wire_bytes: int
    encode_s: float
    wire_s: float
    decode_s: float
    local_s: float


def measure(way: Group, slots: Sequence[Slot], transport: Transport, device: torch.device) -> Sample:
    """Reduces noise as large as the slots, twice, and takes the second time. All ranks call this together."""
    group = replace(way, slots=tuple(slot.name for slot in slots))
    reducer = Reducer(group, list(slots), Site(transport, device, 0, Workspace(device)), 0)
    noise = [slot.view(torch.randn(slot.numel, device=device)).to(slot.dtype) for slot in slots]
    _reduce(reducer, noise)
    encode_s, wire_s, decode_s, local_s = _reduce(reducer, noise)
    sent = way.communicator.wire(way.compressor, reducer.layout, transport.world).wire_bytes
    return Sample(reducer.layout.numel, sent, encode_s, wire_s, decode_s, local_s)


def _reduce(reducer: Reducer, grads: list[Tensor]) -> tuple[float, float, float, float]:
    """Seconds of encoding, on the wire, of decoding after the last collective, and inside the host."""
    wire_s = local_s = encode_s = 0.0
    now = _now(reducer.site.device)
    for index, grad in enumerate(grads):
        reducer.give(index, grad)
    reduction = reducer.reduce()
    result: Tensor | None = None
    while True:
        try:
            op = next(reduction) if result is None else reduction.send(result)
        except StopIteration:
            break
        started = _now(reducer.site.device)
        reducer.site.transport.run(op)
        ended = _now(reducer.site.device)
        encode_s += started - now
        if isinstance(op, Local):
            local_s += ended - started
        else:
            wire_s += ended - started
        now, result = ended, op.result
    decode_s = _now(reducer.site.device) - now
    reducer.close([True] * len(grads))
    return encode_s, wire_s, decode_s, local_s


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


def slowest(numbers: Tensor, transport: Transport) -> Tensor:
    """The largest of all ranks' `numbers` (n,), one by one, on all ranks."""
    return _table(numbers, transport).amax(0)


def _table(numbers: Tensor, transport: Transport) -> Tensor:
    """All ranks' `numbers`, (ranks, n), on all ranks."""
    local = transport.local
    row = transport.rank * (local.world if local else 1) + (local.rank if local else 0)
    table = torch.zeros(transport.ranks, len(numbers), dtype=numbers.dtype, device=numbers.device)
    table[row] = numbers
    if local:
        transport.run(Local(Sum(table)))
    transport.run(Sum(table))
    return table


def contention(transport: Transport) -> float:
    """The share of its speed that backward loses while the engine computes, where that is most: on CPUs without a
    core to spare, half of it or more; none on a GPU."""
    if torch.cuda.is_available():
        return 0.0
    machine = torch.tensor([float(crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes()))], dtype=torch.float64)
    ranks_here = int(_table(machine, transport).eq(machine).sum())
    cores = len(os.sched_getaffinity(0)) / ranks_here
    lost = min(0.75, max(0.0, 1 - cores / (torch.get_num_threads() + 1)))
    return float(slowest(torch.tensor([lost], dtype=torch.float64), transport))


def from_rank_0(numbers: Tensor, transport: Transport) -> None:
    """Gives all ranks the `numbers` (n,) of rank 0."""
    if transport.local:
        transport.run(Local(Broadcast(numbers, 0)))
    transport.run(Broadcast(numbers, 0))
