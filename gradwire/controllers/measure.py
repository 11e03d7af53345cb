"""What a way to send a group costs on this job: seconds of encoding, wire and decoding, on the network it runs on."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from zlib import crc32

import torch
from torch import Tensor

from gradwire.collective import Local
from gradwire.compressors import Workspace
from gradwire.layout import Slot
from gradwire.plan import Group
from gradwire.reducer import Reducer, Site
from gradwire.schedule.profile import wire_bytes
from gradwire.transports import Transport


@dataclass(frozen=True)
class Sample:
    """One reduction alone on the network: of `elements`, of which each rank sent `wire_bytes` in `wire_s`; inside the
    host `local_s`. After that the memory takes `close_s` to give up what was sent."""

    elements: int
    wire_bytes: int
    encode_s: float
    wire_s: float
    decode_s: float
    close_s: float
    local_s: float


MOST_REPEATS, BUDGET_S = 9, 0.25


def measure(way: Group, slots: Sequence[Slot], transport: Transport, device: torch.device) -> Sample:
    """Reduces noise as large as the slots, as often as is possible in a quarter of a second; the medians, the same on
    all ranks. Computing takes as long as on the slowest rank; a collective as long as on the rank that came last, for
    the others waited for it. All ranks call this together."""
    group = replace(way, slots=tuple(slot.name for slot in slots))
    reducer = Reducer(group, list(slots), Site(transport, device, 0, Workspace(device)), 0)
    noise = reducer.layout.views(torch.randn(reducer.layout.numel, device=device).to(slots[0].dtype))
    first_s = slowest([sum(_reduce(reducer, noise))], transport, device)[0]
    repeats = min(MOST_REPEATS, max(1, int(BUDGET_S / first_s)))
    mine = [second for _ in range(repeats) for second in _reduce(reducer, noise)]
    table = _table(mine, transport, device).reshape(transport.ranks, repeats, -1)
    encode_s, decode_s, close_s = table[..., :3].amax(0).quantile(0.5, dim=0).tolist()
    wire_s, local_s = table[..., 3:].amin(0).quantile(0.5, dim=0).tolist()
    sent = wire_bytes(way, reducer.layout, transport.world)
    return Sample(reducer.layout.numel, sent, encode_s, wire_s, decode_s, close_s, local_s)


def _reduce(reducer: Reducer, grads: list[Tensor]) -> tuple[float, float, float, float, float]:
    """Seconds of encoding, of decoding after the last collective, of the memory, on the wire, and inside the host."""
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
    decoded = _now(reducer.site.device)
    reducer.close([True] * len(grads))
    return encode_s, decoded - now, _now(reducer.site.device) - decoded, wire_s, local_s


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


def slowest(numbers: Sequence[float], transport: Transport, device: torch.device) -> list[float]:
    """The largest of all ranks' `numbers`, one by one, on all ranks."""
    return _table(numbers, transport, device).amax(0).tolist()


def _table(numbers: Sequence[float], transport: Transport, device: torch.device) -> Tensor:
    """All ranks' n numbers, (ranks, n), on all ranks."""
    table = torch.zeros(transport.ranks, len(numbers), dtype=torch.float64, device=device)
    table[transport.place] = torch.tensor(numbers, dtype=torch.float64)
    transport.sum_over_all(table)
    return table


def contention(transport: Transport, device: torch.device) -> float:
    """The share of its speed that backward loses while the engine computes, where that is most: what one thread more
    takes from threads that share their cores fairly, half of it at most; none on a GPU."""
    if device.type == "cuda":
        return 0.0
    machine = float(crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes()))
    ranks_here = int(_table([machine], transport, device).eq(machine).sum())
    cores, threads = len(os.sched_getaffinity(0)) / ranks_here, torch.get_num_threads()
    lost = max(0.0, 1 - max(cores, threads) / (threads + 1))
    return slowest([lost], transport, device)[0]
